package lessons

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// cloudOnly is a cluster of which only the cloud runs.
type cloudOnly struct {
	cluster.Cluster
	cloud cluster.Cloud
}

func (c cloudOnly) Cloud() cluster.Cloud { return c.cloud }

// However much the lab calls, a learner's proof stays among the calls.
func TestCallsLeaveOutTheLabsOwn(t *testing.T) {
	cloud := cloudtest.Start(t)
	own, err := cloud.ClientAs(cluster.CallerCCM, api.RoleEditor).ListInstances(t.Context(), client.InstanceFilter{})
	require.NoError(t, err)
	require.Empty(t, own)
	l := &lab.Lab{State: state.InDir(t.TempDir(), "lab"), Cluster: cloudOnly{cloud: cluster.Cloud{
		URL: cloud.URL, Dir: filepath.Dir(cloud.NewToken(cluster.CallerLab, api.RoleEditor)),
	}}}
	asLab, err := l.Cloud()
	require.NoError(t, err)
	_, err = asLab.ListRoutes(t.Context(), client.RouteFilter{})
	require.NoError(t, err)
	labs := &labsActivation{ctx: t.Context(), labs: map[string]*lab.Lab{"": l}, entries: map[bool][]timeline.Entry{}}
	calls, err := labs.timelineEntries(true, time.Time{})
	require.NoError(t, err)
	var what []string
	for _, c := range calls {
		what = append(what, c.Caller+" "+c.What)
	}
	assert.Contains(t, what, "ccm listInstances")
	assert.NotContains(t, what, "lab listRoutes")
}
