// Answers selectors as kube-scheduler does: one JSON request a line on stdin, one JSON answer a line on stdout.
// Used to record tests/unit/cel/vectors (see tests/conformance/record_vectors.py); no test needs it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

type request struct {
	Expression string `json:"expression"`
	Device     struct {
		Driver     string                                                    `json:"driver"`
		Multiple   *bool                                                     `json:"allowMultipleAllocations"`
		Attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
		Capacity   map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
	} `json:"device"`
}

type answer struct {
	Compile string `json:"compile"`
	Match   bool   `json:"match"`
	Error   string `json:"error"`
	Cost    uint64 `json:"cost"`
}

func ask(from request) (found answer) {
	defer func() {
		if problem := recover(); problem != nil {
			found.Error = fmt.Sprintf("panic: %v", problem)
		}
	}()
	gates := cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true}
	written := environment.NewExpressions
	options := cel.Options{DisableCostEstimation: true, EnvType: &written}
	compiled := cel.GetCompiler(gates).CompileCELExpression(from.Expression, options)
	if compiled.Error != nil {
		found.Compile = compiled.Error.Detail
		return found
	}
	match, details, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   from.Device.Driver,
		AllowMultipleAllocations: from.Device.Multiple,
		Attributes:               from.Device.Attributes,
		Capacity:                 from.Device.Capacity,
	})
	found.Match = match
	if err != nil {
		found.Error = err.Error()
	}
	if details != nil && details.ActualCost() != nil {
		found.Cost = *details.ActualCost()
	}
	return found
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	answers := json.NewEncoder(os.Stdout)
	answers.SetEscapeHTML(false)
	for lines.Scan() {
		var from request
		if err := json.Unmarshal(lines.Bytes(), &from); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := answers.Encode(ask(from)); err != nil {
			os.Exit(1)
		}
	}
}
