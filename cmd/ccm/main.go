// ccm is the cloud controller manager for fakecloud.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"

	"github.com/ccmlab/ccmlab/ccm"
)

func main() {
	cmd, err := ccm.NewCommand()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ccm:", err)
		os.Exit(1)
	}
	os.Exit(cli.Run(cmd))
}
