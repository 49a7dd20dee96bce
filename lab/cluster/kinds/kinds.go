// Package kinds is the list of the kinds of clusters. Who imports it can open labs of all
// of them; it is the only package beside the kinds themselves that knows which there are.
// Package lifecycle imports it for everybody.
package kinds

import (
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/cluster/external"
	"github.com/ccmlab/ccmlab/lab/cluster/kind"
)

func init() { cluster.RegisterKinds(embedded.Kind, kind.Kind, external.Kind) }
