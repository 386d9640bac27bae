// Writes CDI specs as `nvidia-ctk cdi generate --mode=nvml` does, from NVIDIA's own library, on a made-up host: one JSON
// request a line on stdin, one spec a line on stdout. Each request is answered by a process of its own that takes the
// host's folder as its root, so it runs as root; NVML is a stand-in that tells what the request says.
// Used to record tests/conformance/cdi_vectors.json (see tests/conformance/cdi.py); no test needs it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
)

type part struct {
	UUID            string `json:"uuid"`
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance int    `json:"computeInstance"`
	Graphics        bool   `json:"graphics"`
}

type gpu struct {
	UUID    string `json:"uuid"`
	Minor   int    `json:"minor"`
	Address string `json:"address"`
	Parts   []part `json:"parts"`
}

type request struct {
	Host       string `json:"host"`
	DriverRoot string `json:"driverRoot"`
	DevRoot    string `json:"devRoot"`
	Hook       string `json:"hook"`
	Version    string `json:"version"`
	GPUs       []gpu  `json:"gpus"`
}

const oneSlice, oneSliceGraphics = nvml.GPU_INSTANCE_PROFILE_1_SLICE, nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX

func profileOf(of part) int {
	if of.Graphics {
		return oneSliceGraphics
	}
	return oneSlice
}

func migDevice(parent nvml.Device, of part) nvml.Device {
	return &mock.Device{
		GetUUIDFunc:                            func() (string, nvml.Return) { return of.UUID, nvml.SUCCESS },
		IsMigDeviceHandleFunc:                  func() (bool, nvml.Return) { return true, nvml.SUCCESS },
		GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return parent, nvml.SUCCESS },
		GetGpuInstanceIdFunc:                   func() (int, nvml.Return) { return of.GPUInstance, nvml.SUCCESS },
		GetComputeInstanceIdFunc:               func() (int, nvml.Return) { return of.ComputeInstance, nvml.SUCCESS },
		GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
			return nvml.DeviceAttributes{MemorySizeMB: 4864}, nvml.SUCCESS
		},
	}
}

func gpuInstance(of part) nvml.GpuInstance {
	compute := &mock.ComputeInstance{
		GetInfoFunc: func() (nvml.ComputeInstanceInfo, nvml.Return) {
			return nvml.ComputeInstanceInfo{ProfileId: 1}, nvml.SUCCESS
		},
	}
	return &mock.GpuInstance{
		GetInfoFunc: func() (nvml.GpuInstanceInfo, nvml.Return) {
			return nvml.GpuInstanceInfo{ProfileId: uint32(profileOf(of))}, nvml.SUCCESS
		},
		GetComputeInstanceByIdFunc: func(int) (nvml.ComputeInstance, nvml.Return) { return compute, nvml.SUCCESS },
		GetComputeInstanceProfileInfoFunc: func(profile, engine int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
			if profile != nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE || engine != 0 {
				return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.ComputeInstanceProfileInfo{Id: 1}, nvml.SUCCESS
		},
	}
}

func device(index int, of gpu) (nvml.Device, map[string]nvml.Device) {
	var self mock.Device
	var parts []nvml.Device
	all := map[string]nvml.Device{}
	for _, each := range of.Parts {
		made := migDevice(&self, each)
		parts = append(parts, made)
		all[each.UUID] = made
	}
	mode := nvml.DEVICE_MIG_DISABLE
	if len(parts) > 0 {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	var info nvml.PciInfo
	for i, letter := range []byte("0000" + of.Address) {
		info.BusId[i] = int8(letter)
	}
	self = mock.Device{
		GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetIndexFunc:             func() (int, nvml.Return) { return index, nvml.SUCCESS },
		GetUUIDFunc:              func() (string, nvml.Return) { return of.UUID, nvml.SUCCESS },
		GetMinorNumberFunc:       func() (int, nvml.Return) { return of.Minor, nvml.SUCCESS },
		GetPciInfoFunc:           func() (nvml.PciInfo, nvml.Return) { return info, nvml.SUCCESS },
		GetMigModeFunc:           func() (int, int, nvml.Return) { return mode, mode, nvml.SUCCESS },
		IsMigDeviceHandleFunc:    func() (bool, nvml.Return) { return false, nvml.SUCCESS },
		GetMaxMigDeviceCountFunc: func() (int, nvml.Return) { return len(parts), nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 40 << 30}, nvml.SUCCESS
		},
		GetMigDeviceHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return parts[i], nvml.SUCCESS },
		GetGpuInstanceByIdFunc: func(id int) (nvml.GpuInstance, nvml.Return) {
			for _, each := range of.Parts {
				if each.GPUInstance == id {
					return gpuInstance(each), nvml.SUCCESS
				}
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
		GetGpuInstanceProfileInfoFunc: func(profile int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
			if profile != oneSlice && profile != oneSliceGraphics {
				return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.GpuInstanceProfileInfo{Id: uint32(profile)}, nvml.SUCCESS
		},
	}
	all[of.UUID] = &self
	return &self, all
}

func library(of request) nvml.Interface {
	var devices []nvml.Device
	byUUID := map[string]nvml.Device{}
	for index, each := range of.GPUs {
		made, all := device(index, each)
		devices = append(devices, made)
		for uuid, one := range all {
			byUUID[uuid] = one
		}
	}
	symbols := &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		ExtensionsFunc:             func() nvml.ExtendedInterface { return symbols },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return of.Version, nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return devices[i], nvml.SUCCESS },
		DeviceGetHandleByUUIDFunc: func(uuid string) (nvml.Device, nvml.Return) {
			if found, ok := byUUID[uuid]; ok {
				return found, nvml.SUCCESS
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
	}
}

func answer(of request) (any, error) {
	if err := syscall.Chroot(of.Host); err != nil {
		return nil, fmt.Errorf("cannot take %s as root: %w", of.Host, err)
	}
	if err := os.Chdir("/"); err != nil {
		return nil, err
	}
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	generator, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(library(of)),
		nvcdi.WithDriverRoot(of.DriverRoot),
		nvcdi.WithDevRoot(of.DevRoot),
		nvcdi.WithNVIDIACDIHookPath(of.Hook),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
	)
	if err != nil {
		return nil, err
	}
	devices, err := generator.GetDeviceSpecsByID("all")
	if err != nil {
		return nil, err
	}
	common, err := generator.GetCommonEdits()
	if err != nil {
		return nil, err
	}
	return map[string]any{"devices": devices, "containerEdits": common.ContainerEdits}, nil
}

func one() error {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	spec, err := answer(asked)
	if err != nil {
		spec = map[string]any{"error": err.Error()}
	}
	return json.NewEncoder(os.Stdout).Encode(spec)
}

func each() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		command := exec.Command(self, "one")
		command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(lines.Bytes()), os.Stdout, nil
		if err := command.Run(); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	run := each
	if len(os.Args) > 1 {
		run = one
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
