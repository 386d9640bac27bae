// Probe is the only program in the container image of the end-to-end tests.
//
//	probe wait            wait for SIGTERM (the sandbox of each pod)
//	probe show            print what this container has as one line of JSON, and end
//	probe show-and-wait   the same, then wait for SIGTERM
//	probe new-key         print a fresh private key for service account tokens
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// standInMajor is "LOCAL/EXPERIMENTAL USE" in the kernel's list of devices: no driver owns it. Opening such a node
// gives ENXIO when the container may use it and EPERM when it may not, and never touches hardware.
const standInMajor = 60

// standInMinors is how many minors are tried; the stand-in machine uses fewer.
const standInMinors = 16

// libraryFolder is where the driver's libraries appear in a container.
const libraryFolder = "/usr/lib"

type deviceNode struct {
	Path  string `json:"path"`
	Kind  string `json:"kind"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Open  string `json:"open"`
}

type report struct {
	Env       map[string]string `json:"env"`
	Devices   []deviceNode      `json:"devices"`
	Usable    []int             `json:"usable"`    // minors of standInMajor that the kernel lets this container open
	Libraries map[string]string `json:"libraries"` // path -> content, of what is mounted below libraryFolder
}

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("expected wait, show, show-and-wait or new-key"))
	}
	switch os.Args[1] {
	case "wait":
		wait()
	case "show":
		show()
	case "show-and-wait":
		show()
		wait()
	case "new-key":
		newKey()
	default:
		fail(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "probe:", err)
	os.Exit(2)
}

func wait() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
}

func show() {
	line, err := json.Marshal(report{environment(), devices(), usable(), libraries()})
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

func environment() map[string]string {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		key, value, _ := strings.Cut(pair, "=")
		env[key] = value
	}
	return env
}

func devices() []deviceNode {
	found := []deviceNode{}
	paths, _ := filepath.Glob("/dev/nvidia*")
	for _, folder := range []string{"/dev/nvidia-caps/*", "/dev/vfio/*", "/dev/vfio/devices/*", "/dev/iommu"} {
		more, _ := filepath.Glob(folder)
		paths = append(paths, more...)
	}
	for _, path := range paths {
		node, err := stat(path)
		if err != nil {
			fail(err)
		}
		if node.Kind != "folder" {
			found = append(found, node)
		}
	}
	return found
}

func stat(path string) (deviceNode, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(path, &st); err != nil {
		return deviceNode{}, fmt.Errorf("stat %s: %w", path, err)
	}
	kind := "other"
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFCHR:
		kind = "char"
	case syscall.S_IFDIR:
		kind = "folder"
	}
	major := uint32((st.Rdev>>8)&0xfff) | uint32((st.Rdev>>32)&^0xfff)
	minor := uint32(st.Rdev&0xff) | uint32((st.Rdev>>12)&^0xff)
	return deviceNode{path, kind, major, minor, open(path)}, nil
}

// open says what the kernel answers: "ok" or the name of the error.
func open(path string) string {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK, 0)
	switch {
	case err == nil:
		syscall.Close(fd)
		return "ok"
	case errors.Is(err, syscall.ENXIO):
		return "ENXIO"
	case errors.Is(err, syscall.EPERM):
		return "EPERM"
	default:
		return err.Error()
	}
}

// usable makes a node of its own for each minor, as a hostile container would, and asks the kernel.
func usable() []int {
	granted := []int{}
	for minor := range standInMinors {
		path := fmt.Sprintf("/stand-in-%d", minor)
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o600, standInMajor<<8|minor); err != nil {
			continue // not allowed to make it: not usable either
		}
		if open(path) != "EPERM" {
			granted = append(granted, minor)
		}
		os.Remove(path)
	}
	return granted
}

// libraries reads what is mounted, file by file, below libraryFolder: nothing else is there by itself.
func libraries() map[string]string {
	found := map[string]string{}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		fail(err)
	}
	for _, line := range strings.Split(string(table), "\n") {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], libraryFolder+"/") {
			content, _ := os.ReadFile(fields[4])
			found[fields[4]] = strings.TrimSpace(string(content))
		}
	}
	return found
}

func newKey() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		fail(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		fail(err)
	}
	_ = pem.Encode(os.Stdout, &pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}
