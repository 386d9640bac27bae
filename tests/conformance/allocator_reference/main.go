// Answers cases of the structured allocator as kube-scheduler does: one case a line on stdin, one answer a line on
// stdout. Asked by tests/conformance/beside_reference.py (`make conformance-go`).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

const shareID = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa"

type device struct{ Driver, Pool, Device, ShareID string }

func (d device) id() structured.DeviceID {
	return structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
}

type question struct {
	Features           []string                     `json:"features"`
	Node               *v1.Node                     `json:"node"`
	Classes            []*resourceapi.DeviceClass   `json:"classes"`
	Slices             []*resourceapi.ResourceSlice `json:"slices"`
	Claims             []*resourceapi.ResourceClaim `json:"claims"`
	AllocatedDevices   []device                     `json:"allocatedDevices"`
	AllocatedShared    []device                     `json:"allocatedShared"`
	AggregatedCapacity []struct {
		device
		Capacity map[resourceapi.QualifiedName]resource.Quantity
	} `json:"aggregatedCapacity"`
}

type answer struct {
	Results []resourceapi.AllocationResult `json:"results"`
	Error   string                         `json:"error"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() (all []*resourceapi.DeviceClass, err error) {
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := c[name]; ok {
		return class, nil
	}
	return nil, fmt.Errorf("device class %s not found", name)
}

// otherNames are those of features that are not called as their gate is.
var otherNames = map[string]string{
	"DeviceBindingConditions":   "DeviceBindingAndStatus",
	"DeviceCompatibilityGroups": "CompatibilityGroups",
}

// featuresOf switches on what the gates name, as far as this version of the allocator has it.
func featuresOf(gates []string) (features structured.Features) {
	fields := reflect.ValueOf(&features).Elem()
	for _, gate := range gates {
		name := strings.TrimPrefix(strings.Split(gate, "+")[0], "DRA")
		if other, ok := otherNames[name]; ok {
			name = other
		}
		if field := fields.FieldByName(name); field.IsValid() {
			field.SetBool(true)
		}
	}
	return features
}

func ask(from question) (found answer) {
	defer func() {
		if problem := recover(); problem != nil {
			found = answer{Error: fmt.Sprintf("panic: %v", problem)}
		}
	}()
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, one := range from.AllocatedDevices {
		state.AllocatedDevices.Insert(one.id())
	}
	for _, one := range from.AllocatedShared {
		uid := types.UID(one.ShareID)
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(one.id(), &uid))
	}
	for _, one := range from.AggregatedCapacity {
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(one.id(), one.Capacity))
	}
	named := classes{}
	for _, class := range from.Classes {
		named[class.Name] = class
	}
	features := featuresOf(from.Features)
	cache := cel.NewCache(100, cel.Features{
		EnableConsumableCapacity: features.ConsumableCapacity, EnableListTypeAttributes: features.ListTypeAttributes})
	ctx := context.Background()
	allocator, err := structured.NewAllocator(ctx, features, state, named, from.Slices, cache)
	if err != nil {
		return answer{Error: err.Error()}
	}
	results, err := allocator.Allocate(ctx, from.Node, from.Claims)
	if err != nil {
		return answer{Error: err.Error()}
	}
	for _, result := range results {
		for i := range result.Devices.Results {
			if result.Devices.Results[i].ShareID != nil {
				uid := types.UID(shareID)
				result.Devices.Results[i].ShareID = &uid
			}
		}
	}
	return answer{Results: results}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for lines.Scan() {
		var from question
		if err := json.Unmarshal(lines.Bytes(), &from); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := answers.Encode(ask(from)); err != nil {
			os.Exit(1)
		}
	}
}
