package core

import (
	"sync/atomic"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Cluster is which cluster this is, and what in the cloud is its own. The name may change, and two clusters may
// share it. The UID, that of namespace kube-system, is unique and never changes. Safe for concurrent use.
type Cluster struct {
	name       string // --cluster-name
	expectsUID atomic.Bool
	knownUID   atomic.Pointer[string]
	// onUIDKnown is called when the UID has become known; nil for nobody.
	onUIDKnown func()
}

// NewCluster makes a cluster that is known by its name alone.
func NewCluster(name string) *Cluster { return &Cluster{name: name} }

// ExpectUID says that the cluster's UID will be set: until then no route can be told from another cluster's. It is
// called before the controllers start.
func (c *Cluster) ExpectUID() { c.expectsUID.Store(true) }

// OnUIDKnown has fn called when the UID is set. Call it before anybody sets it.
func (c *Cluster) OnUIDKnown(fn func()) { c.onUIDKnown = fn }

// SetUID sets the cluster's UID.
func (c *Cluster) SetUID(uid string) {
	c.expectsUID.Store(true)
	c.knownUID.Store(&uid)
	if c.onUIDKnown != nil {
		c.onUIDKnown()
	}
}

// Name is --cluster-name.
func (c *Cluster) Name() string { return c.name }

// UID is the cluster's UID, "" as long as it is not known.
func (c *Cluster) UID() string {
	if uid := c.knownUID.Load(); uid != nil {
		return *uid
	}
	return ""
}

// ownership is what the tags of a cloud resource say about whose it is.
type ownership int

const (
	// ownedByOther: another cluster's, or no cluster's.
	ownedByOther ownership = iota
	// ownedByThis: this cluster's, by its UID, or by its name as long as a UID cannot tell.
	ownedByThis
	// ownershipUnknown: it has another name, and a UID that cannot be compared until the cluster's own is known. It is
	// another cluster's, or this one's from when it had another name.
	ownershipUnknown
)

// ownershipOf tells from a cloud resource's tags which cluster owns it. The UID decides, whatever the name. A resource
// without a UID was made before the cluster's UID was known, so its name decides.
func (c *Cluster) ownershipOf(tags api.Tags) ownership {
	uid, ours := tags[contract.TagClusterUID], c.UID()
	hasName := tags[contract.TagCluster] == c.name
	switch {
	case (uid == "" || ours == "") && hasName, uid != "" && uid == ours:
		return ownedByThis
	case uid != "" && ours == "":
		return ownershipUnknown
	}
	return ownedByOther
}

// MayOwn tells whether a resource's tags say that this cluster owns it. It is false when that cannot be told yet.
func (c *Cluster) MayOwn(tags api.Tags) bool { return c.ownershipOf(tags) == ownedByThis }

// TagFilters are filters of the cloud's lists. Each resource of the cluster matches at least one. Until the UID is
// known, they miss resources that carry an earlier name of the cluster.
func (c *Cluster) TagFilters() []string {
	filters := []string{contract.TagCluster + "=" + c.name}
	if uid := c.UID(); uid != "" {
		filters = append(filters, contract.TagClusterUID+"="+uid)
	}
	return filters
}
