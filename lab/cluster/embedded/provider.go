package embedded

// Clusters with and without an external cloud provider. They differ in one flag of two
// components.

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

func (c *Cluster) noProvider() bool { return c.Lab.CloudProvider == cluster.ProviderNone }

func (c *Cluster) describeProvider() string {
	if c.noProvider() {
		return "without a cloud provider"
	}
	return c.cloudProvider()
}

// cloudProvider is the flag that kubelets and kube-controller-manager share. An
// empty value is upstream's default; it is written so that it can be seen.
func (c *Cluster) cloudProvider() string {
	if c.noProvider() {
		return providerFlag
	}
	return providerFlag + cluster.ProviderExternal
}

const providerFlag = "--cloud-provider="

// ProviderFlags implements cluster.Flagged. It reads the flags that the running
// processes were started with.
func (c *Cluster) ProviderFlags() (map[string]string, error) {
	running, err := c.Host.Running()
	if err != nil {
		return nil, err
	}
	flags := map[string]string{}
	for component, p := range running {
		name := component
		if strings.HasPrefix(component, nodePrefix) {
			name = cluster.ComponentKubelet
		}
		if name != cluster.ComponentKubelet && name != cluster.ComponentKCM {
			continue
		}
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		if err != nil {
			continue // It has ended since.
		}
		for arg := range bytes.SplitSeq(line, []byte{0}) {
			if value, ok := strings.CutPrefix(string(arg), providerFlag); ok {
				flags[name] = value
			}
		}
	}
	return flags, nil
}
