package program

import "strings"

// CanRenameCluster implements conformance.ClusterRenamer: one of the program's templates names the
// cluster.
func (p *CCM) CanRenameCluster() bool {
	for _, text := range p.allTemplates() {
		if strings.Contains(text, ".ClusterName") {
			return true
		}
	}
	return false
}

// RenameCluster implements conformance.ClusterRenamer. Replicas keep the name that they have.
func (p *CCM) RenameCluster(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clusterName = name
}
