// Package labels has the keys with which the conformance suite marks what it makes in a cluster.
// The suite writes them; a cluster that was lent to it is tidied by them. The package imports
// nothing, so that neither of the two needs the other.
package labels

const (
	// ConformanceSuite is the label of every namespace that the suite makes.
	ConformanceSuite = "conformance.ccmlab.io/suite"
	// StandInTaint keeps pods off Nodes that have no kubelet: the suite stands in for it.
	StandInTaint = "conformance.ccmlab.io/stand-in"
	// NodeFleet is the label of the Nodes and leases that belong to one of the suite's fleets.
	NodeFleet = "conformance.ccmlab.io/crowd"
)
