// Reference is a trivial DRA driver on the Go library of Kubernetes: what the library alone costs, beside Dracaena.
//
// It prepares a claim with one CDI spec and one checkpoint file, each written, synced and renamed, and unprepares it by
// removing both. It keeps no podlist, checks no other claim and writes nothing to the API but its slices. Flags have
// the names of `dracaena kubelet-plugin`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

type driver struct {
	name        string
	cdiRoot     string
	checkpoints string

	mutex    sync.Mutex
	prepared map[types.UID]kubeletplugin.PrepareResult
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file")
	name := flag.String("driver-name", "gpu.dracaena.dev", "driver name")
	node := flag.String("node-name", "", "name of this node")
	kubelet := flag.String("kubelet-root", "/var/lib/kubelet", "kubelet's folder")
	cdiRoot := flag.String("cdi-root", "/var/run/cdi", "folder of CDI specs")
	devices := flag.String("devices", "", "names of the devices to publish, with commas")
	flag.Parse()
	if err := run(*kubeconfig, *name, *node, *kubelet, *cdiRoot, strings.Split(*devices, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, name, node, kubelet, cdiRoot string, devices []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	config.QPS, config.Burst = 100, 100 // the default of 5 a second would be what is measured
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data, registry := filepath.Join(kubelet, "plugins", name), filepath.Join(kubelet, "plugins_registry")
	d := &driver{name: name, cdiRoot: cdiRoot, checkpoints: filepath.Join(data, "claims")}
	for _, folder := range []string{d.checkpoints, registry, cdiRoot} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	if err := d.load(); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, d,
		kubeletplugin.DriverName(name),
		kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(registry),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, pool(node, devices)); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func pool(node string, names []string) resourceslice.DriverResources {
	devices := make([]resourceapi.Device, 0, len(names))
	for _, name := range names {
		devices = append(devices, resourceapi.Device{Name: name})
	}
	slices := []resourceslice.Slice{{Devices: devices}}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: {Slices: slices}}}
}

func (d *driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		results[claim.UID] = d.prepare(claim)
	}
	return results, nil
}

func (d *driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		results[claim.UID] = d.unprepare(claim.UID)
	}
	return results, nil
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	klog.ErrorS(err, message)
}

func (d *driver) prepare(claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if done, ok := d.prepared[claim.UID]; ok {
		return done
	}
	result := kubeletplugin.PrepareResult{}
	devices := []any{}
	for _, given := range claim.Status.Allocation.Devices.Results {
		if given.Driver != d.name {
			continue
		}
		name := fmt.Sprintf("%s-%s", claim.UID, given.Device)
		result.Devices = append(result.Devices, kubeletplugin.Device{
			Requests:     []string{given.Request},
			PoolName:     given.Pool,
			DeviceName:   given.Device,
			CDIDeviceIDs: []string{fmt.Sprintf("%s/claim=%s", d.name, name)},
			ShareID:      given.ShareID,
		})
		edits := map[string]any{"env": []string{"REFERENCE_DEVICE=" + given.Device}}
		devices = append(devices, map[string]any{"name": name, "containerEdits": edits})
	}
	spec := map[string]any{"cdiVersion": "0.6.0", "kind": d.name + "/claim", "devices": devices}
	if err := write(d.spec(claim.UID), spec); err != nil {
		return kubeletplugin.PrepareResult{Err: err}
	}
	if err := write(d.checkpoint(claim.UID), result); err != nil {
		return kubeletplugin.PrepareResult{Err: err}
	}
	d.prepared[claim.UID] = result
	return result
}

func (d *driver) unprepare(uid types.UID) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	for _, path := range []string{d.spec(uid), d.checkpoint(uid)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	delete(d.prepared, uid)
	return nil
}

func (d *driver) load() error {
	d.prepared = map[types.UID]kubeletplugin.PrepareResult{}
	paths, err := filepath.Glob(filepath.Join(d.checkpoints, "*.json"))
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var result kubeletplugin.PrepareResult
		if err := json.Unmarshal(content, &result); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		d.prepared[types.UID(strings.TrimSuffix(filepath.Base(path), ".json"))] = result
	}
	return err
}

func (d *driver) spec(uid types.UID) string {
	return filepath.Join(d.cdiRoot, fmt.Sprintf("%s-claim_%s.json", d.name, uid))
}

func (d *driver) checkpoint(uid types.UID) string {
	return filepath.Join(d.checkpoints, string(uid)+".json")
}

// write replaces a file: written, synced, renamed.
func write(path string, document any) error {
	content, err := json.Marshal(document)
	if err != nil {
		return err
	}
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
