// Etcd is the server of its own module, under the name by which everybody knows it: `go build` would call it `server`.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
