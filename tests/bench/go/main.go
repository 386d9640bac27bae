// Asks NVIDIA's go-gpuallocator, as the device plugin does, for every state of the machines on standard input.
//
// Input, JSON: a list of machines, each with the two matrices that NVML would tell of it. Output, JSON: for each machine
// its answers, by free GPUs (masks, ascending) and then by the number asked for, ascending. An answer is the mask of the
// GPUs that are handed out; 0 for none or too few; -1 where a nil is among them, which crashes the caller, or it panics.
package main

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"os"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
)

const crashed = -1

type machine struct {
	// Levels has 1 for a pair across CPUs to 6 for one on the same board, 0 for none: go-gpuallocator's numbers.
	Levels [][]int `json:"levels"`
	// NVLinks has the links of each pair that end at the other GPU: links to NVSwitches end elsewhere.
	NVLinks [][]int `json:"nvlinks"`
}

const oneNVLink = 7

func main() {
	var machines []machine
	if err := json.NewDecoder(os.Stdin).Decode(&machines); err != nil {
		fmt.Fprintln(os.Stderr, "machines on standard input:", err)
		os.Exit(2)
	}
	answers := make([][]int, 0, len(machines))
	for _, each := range machines {
		answers = append(answers, allStates(devices(each)))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		fmt.Fprintln(os.Stderr, "answers to standard output:", err)
		os.Exit(1)
	}
}

func devices(of machine) []*gpuallocator.Device {
	var made []*gpuallocator.Device
	for index := range of.Levels {
		device := &gpuallocator.Device{Index: index, Links: map[int][]gpuallocator.P2PLink{}}
		device.UUID = fmt.Sprint("GPU-", index)
		made = append(made, device)
	}
	for a, device := range made {
		for b, peer := range made {
			if level := of.Levels[a][b]; level > 0 {
				device.Links[b] = append(device.Links[b], link(peer, level))
			}
			if count := of.NVLinks[a][b]; count > 0 {
				device.Links[b] = append(device.Links[b], link(peer, oneNVLink-1+count))
			}
		}
	}
	return made
}

// The type of a link has no name outside of go-gpuallocator, so its value is counted up.
func link(to *gpuallocator.Device, kind int) gpuallocator.P2PLink {
	made := gpuallocator.P2PLink{GPU: to}
	for range kind {
		made.Type++
	}
	return made
}

func allStates(all []*gpuallocator.Device) []int {
	var answers []int
	policy := gpuallocator.NewBestEffortPolicy()
	for free := 1; free < 1<<len(all); free++ {
		var available []*gpuallocator.Device
		for index, device := range all {
			if free>>index&1 == 1 {
				available = append(available, device)
			}
		}
		for count := 1; count <= bits.OnesCount(uint(free)); count++ {
			answers = append(answers, ask(policy, available, count))
		}
	}
	return answers
}

func ask(policy gpuallocator.Policy, available []*gpuallocator.Device, count int) (answer int) {
	defer func() {
		if recover() != nil {
			answer = crashed
		}
	}()
	chosen := policy.Allocate(available, nil, count)
	for _, device := range chosen {
		answer |= 1 << device.Index // panics at a nil
	}
	if len(chosen) != count {
		return 0
	}
	return answer
}
