package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeports"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
)

type question struct {
	Node    *v1.Node  `json:"node"`
	Pods    []*v1.Pod `json:"pods"`
	Pod     *v1.Pod   `json:"pod"`
	Classes []string  `json:"classes"`
}
type dra struct {
	fwk.SharedDRAManager
	classes map[string]bool
}
type resolver struct {
	fwk.DeviceClassResolver
	classes map[string]bool
}

func (d dra) DeviceClassResolver() fwk.DeviceClassResolver { return resolver{classes: d.classes} }
func (r resolver) GetDeviceClass(n v1.ResourceName) *resourceapi.DeviceClass {
	if r.classes[string(n)] {
		return &resourceapi.DeviceClass{}
	}
	return nil
}

func amounts(r fwk.Resource) map[string]int64 {
	out := map[string]int64{}
	put := func(n string, v int64) {
		if v != 0 {
			out[n] = v
		}
	}
	put("cpu", r.GetMilliCPU())
	put("memory", r.GetMemory())
	put("ephemeral-storage", r.GetEphemeralStorage())
	put("pods", int64(r.GetAllowedPodNumber()))
	for n, v := range r.GetScalarResources() {
		put(string(n), v)
	}
	return out
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(make([]byte, 1<<20), 1<<26)
	for in.Scan() {
		var q question
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			fmt.Println(`{"error":` + fmt.Sprintf("%q", err.Error()) + `}`)
			continue
		}
		info := framework.NewNodeInfo(q.Pods...)
		info.SetNode(q.Node)
		classes := map[string]bool{}
		for _, c := range q.Classes {
			classes[c] = true
		}
		short := noderesources.Fits(q.Pod, info, dra{classes: classes}, noderesources.ResourceRequestsOptions{EnablePodLevelResources: true, EnableDRAExtendedResource: true})
		names := []string{}
		for _, s := range short {
			n := string(s.ResourceName)
			if s.Unresolvable {
				n += "!"
			}
			names = append(names, n)
		}
		sort.Strings(names)
		pi, _ := framework.NewPodInfo(q.Pod)
		var taintKey string
		logger := klog.Background()
		taint, bad := corev1helpers.FindMatchingUntoleratedTaint(logger, q.Node.Spec.Taints, q.Pod.Spec.Tolerations, func(t *v1.Taint) bool {
			return t.Effect == v1.TaintEffectNoSchedule || t.Effect == v1.TaintEffectNoExecute
		}, false)
		if bad {
			taintKey = taint.Key
		}
		match, _ := nodeaffinity.GetRequiredNodeAffinity(q.Pod).Match(q.Node)
		cordon := q.Node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(logger, q.Pod.Spec.Tolerations, &v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}, false)
		out, _ := json.Marshal(map[string]any{
			"takes": amounts(pi.CalculateResource().Resource), "used": amounts(info.GetRequested()), "room": amounts(info.GetAllocatable()),
			"short": names, "ports": nodeports.Fits(q.Pod, info), "affinity": match, "taint": taintKey, "untolerated": bad, "cordoned": cordon,
		})
		fmt.Println(string(out))
	}
}
