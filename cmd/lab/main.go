// lab brings a cloud, a Kubernetes cluster and a cloud controller manager up
// together, and shows what happens between them.
package main

import (
	"os"

	"github.com/ccmlab/ccmlab/lab/cli"
)

func main() { os.Exit(cli.Main()) }
