package conformance

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDefaultLimits(t *testing.T) {
	limits := DefaultLimits()
	for _, tc := range []struct {
		nodes      int
		phase      Phase
		controller Controller
		want       float64
	}{
		{10, PhaseInitialize, ControllerNode, 3}, // One that asks for each is fine with few.
		{150, PhaseInitialize, ControllerNode, 0.4},
		{1000, PhaseInitialize, ControllerNode, 0.3},
		{1000, PhaseInitialize, ControllerService, 0.03},
		{1000, PhaseInitialize, ControllerRoute, 2.3},
		{150, PhaseRest, ControllerNode, 0.2},
		{1000, PhaseRest, ControllerNode, 0.15},
		{10, PhaseCreated, ControllerService, 20},
		{1000, PhaseCreated, ControllerService, 20}, // Whatever the Nodes.
		{1000, PhaseDeleted, ControllerNode, 60},
	} {
		assert.InDelta(
			t, tc.want, limits[tc.nodes][tc.phase][tc.controller], 1e-9, limitKey(tc.nodes, tc.phase, tc.controller),
		)
	}
	for _, nodes := range BudgetSizes {
		for _, phase := range Phases {
			assert.Len(t, limits[nodes][phase], len(Controllers))
		}
	}
}

func TestParseLimits(t *testing.T) {
	again, err := ParseLimits(DefaultLimits().YAML())
	require.NoError(t, err)
	assert.Equal(t, DefaultLimits(), again, "what is printed can be read")
	some, err := ParseLimits([]byte("150: {initialise: {node: 2}, services-created: {service: 0}}\n"))
	require.NoError(t, err)
	want := DefaultLimits()
	want[150][PhaseInitialize][ControllerNode], want[150][PhaseCreated][ControllerService] = 2, 0
	assert.Equal(t, want, some, "what is left out stays")
	none, err := ParseLimits(nil)
	require.NoError(t, err)
	assert.Equal(t, DefaultLimits(), none)
	for text, want := range map[string][]string{
		"15: {rest: {node: 1}}\nmany: {}": {
			"15: the budget is looked at with so many Nodes: 10, 150, 1000", "many: the budget",
		},
		"10: {sleep: {node: 1}}": {
			"10.sleep: there is no such phase: choose from initialise, rest, services-created, services-changed, services-deleted",
		},
		"10: {rest: {nodes: 1, node: -1}}": {
			"10.rest.nodes: there is no such controller: choose from node, service, route, other",
			"10.rest.node: want a number of calls",
		},
		"10: {rest: {node: }}":    {"10.rest.node: want a number of calls"},
		"10: {rest: {node: few}}": {"limits are numbers"},
		"- 10":                    {"limits are numbers"},
	} {
		_, err := ParseLimits([]byte(text))
		for _, want := range want {
			assert.ErrorContains(t, err, want, text)
		}
	}
}

func TestBudget(t *testing.T) {
	before := Calls{Count{10, 1}, map[Thing]Count{Instances: {4, 0}, Balancers: {2, 1}}}
	after := Calls{Count{380, 13}, map[Thing]Count{Instances: {304, 0}, Balancers: {12, 11}, Routes: {60, 2}}}
	since := after.Since(before)
	assert.Equal(
		t, Calls{Count{370, 12}, map[Thing]Count{Instances: {300, 0}, Balancers: {10, 10}, Routes: {60, 2}}}, since,
	)
	s := &Suite{limits: DefaultLimits()}
	rows := s.Budget(150, PhaseInitialize, 150, 0, since)
	assert.Equal(t, []Spent{
		{150, PhaseInitialize, ControllerNode, 300, 0, 2, "Node", 0.4, 0},
		{150, PhaseInitialize, ControllerService, 10, 10, 0.133, "Node", 0.2, 0},
		{150, PhaseInitialize, ControllerRoute, 60, 2, 0.413, "Node", 2.4, 0},
		{150, PhaseInitialize, ControllerOther, 0, 0, 0, "Node", 0.2, 0},
	}, rows)
	assert.False(t, Within(rows))
	assert.True(t, Within(rows[1:]))
	rows = s.Budget(150, PhaseCreated, BudgetServices, 0, since)
	assert.Equal(t, Spent{150, PhaseCreated, ControllerService, 10, 10, 4, "Service", 20, 0}, rows[1])
}

// A controller that lists everything each second makes more calls the longer it takes.
func TestABudgetAllowsForTime(t *testing.T) {
	s := &Suite{limits: DefaultLimits()}
	for _, tc := range []struct {
		nodes      int
		phase      Phase
		units      int
		controller Controller
		want       float64
	}{
		{10, PhaseRest, 10, ControllerNode, 1.5 + 1.5},
		{150, PhaseRest, 150, ControllerNode, 0.2 + 0.2},
		{150, PhaseRest, 150, ControllerRoute, 0.2 + 0.2},
		{1000, PhaseInitialize, 1000, ControllerRoute, 2.3 + 0.15},
		{1000, PhaseInitialize, 1000, ControllerService, 0.03}, // What no Node and no second brings.
		{150, PhaseCreated, BudgetServices, ControllerNode, 12 + 6},
		{150, PhaseCreated, BudgetServices, ControllerService, 20},
	} {
		rows := s.Budget(tc.nodes, tc.phase, tc.units, 15*time.Second, Calls{})
		i := slices.IndexFunc(rows, func(row Spent) bool { return row.Controller == tc.controller })
		assert.InDelta(t, tc.want, rows[i].Limit, 1e-9, limitKey(tc.nodes, tc.phase, tc.controller))
	}
}

// A minute's rest allows lists, at work and by the second, and some calls about what does not grow with Nodes.
func TestAllowedAtRest(t *testing.T) {
	assert.Equal(t, map[Controller]int{
		ControllerNode: 75, ControllerRoute: 75, ControllerService: 30, ControllerOther: 30,
	}, AllowedAtRest(3, time.Minute))
	assert.Equal(t, 150, AllowedAtRest(101, time.Minute)[ControllerNode], "two pages")
}

func TestABudgetThatIsExceededFailsTheTestAndIsReported(t *testing.T) {
	r := newRun(Options{Tests: []Test{
		alone(core("large", func(t *T) {
			t.Record(t.Budget(
				150, PhaseInitialize, 150, 15*time.Second, Calls{Count{310, 5}, map[Thing]Count{Instances: {310, 5}}},
			))
		})),
		alone(core("small", func(t *T) { t.Record(t.Budget(10, PhaseRest, 10, 0, Calls{})) })),
	}})
	r.suite.limits = DefaultLimits()
	report, err := r.outcome(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]Result{"large": Failed, "small": Passed}, results(report))
	assert.Equal(t, []string{
		"150 Nodes, phase initialise: calls about what the node controller sees to were 2.1 per Node (310 reads, 5 writes), and 0.6 is the limit for the 15s that it took: " +
			"list instances, page by page, and answer for all Nodes from that, instead of asking the cloud about each; " +
			"or allow more, as 150.initialise.node in the file of --budget",
	}, reasons(report, "large"))
	require.Len(t, report.Budget, 2*len(Controllers))
	assert.Equal(t, 10, report.Budget[0].Nodes, "in the order of their size")
}

func TestFreeRanges(t *testing.T) {
	all := netip.MustParsePrefix("10.7.128.0/17")
	taken := []netip.Prefix{netip.MustParsePrefix("10.7.255.128/25"), netip.MustParsePrefix("10.7.254.0/24")}
	free := freeRanges(all, taken, 40)
	assert.Len(t, free, 40)
	assert.Equal(t, "10.7.255.124/30", free[0], "the last that nobody has")
	assert.Equal(t, "10.7.255.0/30", free[31])
	assert.Equal(t, "10.7.253.252/30", free[32])
	assert.Len(t, freeRanges(all, nil, 1000), 1000)
	assert.Nil(t, freeRanges(netip.MustParsePrefix("10.0.0.0/28"), nil, 5), "there are not so many")
}
