// peer serves govmomi's vSphere simulator, the engine of its program vcsim, to which
// bench-cloud compares fakecloud: plain HTTP on loopback, one data centre, no virtual
// machine. It prints its address and what a client needs to create a machine, and serves
// until it is killed. It is a module of its own, so that the project does not depend on
// govmomi.
package main

import (
	"fmt"
	"net/url"
	"os"
	"runtime/debug"

	"github.com/vmware/govmomi/simulator"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run() error {
	model := simulator.VPX()
	model.Machine = 0
	if err := model.Create(); err != nil { // Its files are in TMPDIR, which bench-cloud removes.
		return err
	}
	centre, ok := model.Map().Any("Datacenter").(*simulator.Datacenter)
	if !ok {
		return fmt.Errorf("the model has no data centre")
	}
	pool := model.Map().Any("ResourcePool").Reference()
	model.Service.Listen = &url.URL{Host: "127.0.0.1:0"}
	s := model.Service.NewServer()
	fmt.Printf(
		"peer %s is ready at %s folder %s pool %s\n", govmomiVersion(), s.URL.Host, centre.VmFolder.Value, pool.Value,
	)
	select {}
}

// govmomiVersion is the version of govmomi in the build.
func govmomiVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/vmware/govmomi" {
				return m.Version
			}
		}
	}
	return "unknown"
}
