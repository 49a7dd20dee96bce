package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// A test that uses an operation fails where the driver does not name its feature: it would have to need it.
func TestFeatureThatIsMissing(t *testing.T) {
	c := clientOf(featuresOnly{features: []Feature{FeatureUDP}})
	assert.Equal(t, []Feature{FeatureUDP}, c.Features())
	_, err := c.CountCalls(t.Context())
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.EqualError(t, err, "countCalls: the cloud's driver does not have calls: unsupported operation")
	_, err = c.InjectFault(t.Context(), Fault{Kind: FaultSlow})
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.Nil(t, c.callJournal())
	assert.NotNil(t, clientOf(&journaled{}).callJournal())
	assert.NotContains(t, clientOf(&journaled{}).Features(), RoleCallJournal, "no test needs it")
}

// What is not found is no error where one thing was asked for, and an error where it is to be changed.
func TestWhatIsNotFound(t *testing.T) {
	c := clientOf(emptyCloud{featuresOnly{features: []Feature{FeatureRoutes, FeatureTagBalancer}}})
	_, found, err := c.GetBalancer(t.Context(), "gone")
	require.NoError(t, err)
	assert.False(t, found)
	_, found, err = c.GetRoute(t.Context(), "gone")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	assert.False(t, found)
	assert.ErrorIs(t, c.TagBalancer(t.Context(), "gone", Name{}), protocol.ErrNotFound)
}

// emptyCloud has no balancers, and floating IPs.
type emptyCloud struct{ featuresOnly }

func (emptyCloud) GetBalancer(context.Context, string) (Balancer, error) {
	return Balancer{}, protocol.ErrNotFound
}

func (emptyCloud) TagBalancer(context.Context, string, Name) error { return protocol.ErrNotFound }

func (emptyCloud) CountConnections(context.Context, string) (protocol.ConnectionCounts, error) {
	return protocol.ConnectionCounts{Uncounted: true}, nil
}

func TestBalancerThatCountsNothing(t *testing.T) {
	_, err := clientOf(emptyCloud{featuresOnly{features: []Feature{FeatureTraffic}}}).CountConnections(t.Context(), "ip")
	assert.ErrorIs(t, err, ErrNotCounted)
}

// Timelines say what each operation does that changes something: openapi.yaml has the text, with names that the
// request has.
func TestTextsOfTimelines(t *testing.T) {
	fill := fillerOf("b-1", BalancerChange{Listeners: []Listener{{Protocol: "TCP", Port: 80}}, Targets: []string{"i-1"}})
	assert.Equal(t, "changing balancer b-1: listeners [map[port:80 protocol:TCP]], targets [i-1]",
		fill(protocol.OperationNamed("changeBalancer").Timeline))
	assert.Equal(t, "the twin of b-1", fillerOf("b-1", nil)(protocol.OperationNamed("createTwinBalancer").TimelineName))
}

// flagCCM takes further flags.
type flagCCM struct{ *fakeCCM }

func (flagCCM) SetExtraFlags(...string) {}

// A test asks for features of the CCM and the cluster as for the cloud's.
func TestHasFeatureOfCCMAndCluster(t *testing.T) {
	suite := newRun(Options{Implementation: Implementation{CCM: flagCCM{newFakeCCM()}}}).suite
	assert.True(t, suite.HasFeature(FeatureFlags))
	assert.False(t, suite.HasFeature(FeatureLocalAPIServer))
	suite.APIServer = "127.0.0.1:6443"
	assert.True(t, suite.HasFeature(FeatureLocalAPIServer))
	suite.unsupported = Unsupported{string(FeatureFlags): "it takes none"}
	assert.False(t, suite.HasFeature(FeatureFlags))
}
