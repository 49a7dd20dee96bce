package conformance

import (
	"context"
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
		"traced":           {tracingCloud{Cloud: wrappedCloud{faultyCloud{}}}, []Feature{"fault-slow", "fault-lost"}},
	} {
		assert.ElementsMatch(t, tc.want, FeaturesOf(tc.cloud), name)
	}
}

// The cloud in a test's hands has the driver's roles, which record, and no others.
func TestTracedRoles(t *testing.T) {
	cloud := tracingCloud{Cloud: wrappedCloud{faultyCloud{}}}
	faults, ok := As[FaultInjector](cloud)
	require.True(t, ok)
	assert.IsType(t, tracingFaultInjector{}, faults)
	assert.False(t, hasRole[CallCounter](cloud))
	assert.False(t, hasRole[InstanceBatcher](cloud))

	report, err := newRun(Options{Tests: []Test{core("a", func(t *T) { t.FaultInjector() })}}).outcome(t.Context())
	require.NoError(t, err)
	assert.Contains(t, reasons(report, "a")[0], "FaultInjector")
}

// What gives an address back is the driver's own, called once.
func TestTracedAddressIsReleasedOnce(t *testing.T) {
	released := 0
	reserver, ok := As[AddressReserver](tracingCloud{Cloud: addressCloud{released: &released}})
	require.True(t, ok)
	address, release, err := reserver.ReserveAddress(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "192.0.2.1", address)
	require.NoError(t, release(t.Context()))
	assert.Equal(t, 1, released)
}
