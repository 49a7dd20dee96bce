package conformance

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// countingCloud has two roles.
type countingCloud struct{ featuresOnly }

func (countingCloud) CountCalls(context.Context) (Calls, error) { return Calls{}, nil }

func (countingCloud) CountConnections(context.Context, string) (map[int32]int64, error) {
	return nil, nil
}

// faultyCloud injects faults of two kinds.
type faultyCloud struct{ featuresOnly }

func (faultyCloud) FaultKinds() []FaultKind { return []FaultKind{FaultSlow, FaultLost} }

func (faultyCloud) InjectFault(context.Context, Fault) (Injection, error) { return nil, nil }

// addressCloud reserves one address, and counts how often it is released.
type addressCloud struct {
	featuresOnly
	released *int
}

func (c addressCloud) ReserveAddress(context.Context) (string, func(context.Context) error, error) {
	return "192.0.2.1", func(context.Context) error { *c.released++; return nil }, nil
}

// wrappedCloud is somebody else's wrapper of a driver.
type wrappedCloud struct{ Cloud }

func (c wrappedCloud) Unwrap() Cloud { return c.Cloud }

func TestFeaturesFollowFromRoles(t *testing.T) {
	declared := featuresOnly{features: []Feature{FeatureUDP, FeatureTraffic, FeatureCalls, FaultFeature(FaultReset)}}
	for name, tc := range map[string]struct {
		cloud Cloud
		want  []Feature
	}{
		"no roles: what needs one does not count": {declared, []Feature{FeatureUDP}},
		"two roles":        {countingCloud{declared}, []Feature{FeatureUDP, FeatureTraffic, FeatureCalls}},
		"nothing declared": {countingCloud{}, []Feature{FeatureCalls}},
		"faults":           {faultyCloud{}, []Feature{"fault-slow", "fault-lost"}},
		"wrapped":          {wrappedCloud{wrappedCloud{countingCloud{}}}, []Feature{FeatureCalls}},
		"a client":         {wrappedCloud{clientOf(faultyCloud{})}, []Feature{"fault-slow", "fault-lost"}},
	} {
		assert.ElementsMatch(t, tc.want, FeaturesOf(tc.cloud), name)
		assert.ElementsMatch(t, tc.want, clientOf(tc.cloud).Features(), name)
	}
}

// A test that uses a role fails where the driver does not have it: it would have to need the feature.
func TestRoleThatIsMissing(t *testing.T) {
	_, err := clientOf(faultyCloud{}).CountCalls(t.Context())
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "the cloud's driver does not have calls")
	_, err = clientOf(featuresOnly{}).InjectFault(t.Context(), Fault{Kind: FaultSlow})
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.Nil(t, clientOf(faultyCloud{}).journal())
	assert.NotNil(t, clientOf(&journaled{}).journal())
}

// What gives an address back is the driver's own, called once.
func TestAddressIsReleasedOnce(t *testing.T) {
	released := 0
	address, release, err := clientOf(addressCloud{released: &released}).ReserveAddress(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.1", address)
	require.NoError(t, release(t.Context()))
	require.NoError(t, release(t.Context()), "a second time does nothing")
	assert.Equal(t, 1, released)
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
