package conformance

// How many calls of the cloud's API may the CCM's work cost? Limits say it for
// each number of Nodes, phase and controller; Spent is what was counted.
//
// Which controller made a call is nothing that a cloud is told. It is deduced
// from what the call is about.

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// Calls is how many calls of the cloud's API were made.
type Calls struct {
	Count
	// Of groups the calls by what they are about. Calls about nothing that the suite knows, such as
	// reading the account, are left out.
	Of map[Thing]Count `json:"things,omitempty"`
}

// ToProtocol returns the calls as a driver answers them.
func (c Calls) ToProtocol() protocol.CallCounts {
	counts := protocol.CallCounts{Reads: c.Reads, Writes: c.Writes, Things: map[string]protocol.CallCount{}}
	for thing, count := range c.Of {
		counts.Things[string(thing)] = protocol.CallCount(count)
	}
	return counts
}

// Count of calls.
type Count struct {
	// Reads change nothing; Writes create, change or delete something.
	Reads  int `json:"reads"`
	Writes int `json:"writes"`
}

// What calls are about.
const (
	Instances = protocol.Instances
	Balancers = protocol.Balancers
	Routes    = protocol.Routes
)

// Phase is what the CCM does while its calls are counted.
type Phase string

// Phases, of which the first two are counted per Node, the others per Service.
const (
	PhaseInitialize Phase = "initialise"       // so many Nodes register at once
	PhaseRest       Phase = "rest"             // nothing happens, while the CCM looks at its Nodes several times
	PhaseCreated    Phase = "services-created" // a few Services are created, changed and deleted
	PhaseChanged    Phase = "services-changed"
	PhaseDeleted    Phase = "services-deleted"
)

// Phases are all of them, in the order in which they come.
var Phases = []Phase{PhaseInitialize, PhaseRest, PhaseCreated, PhaseChanged, PhaseDeleted}

// PerService tells whether calls are counted for each Service, and not for each
// Node.
func (p Phase) PerService() bool { return strings.HasPrefix(string(p), "services-") }

// Controller is one of the CCM's controllers, or several that ask the cloud about the same things.
type Controller string

// Controllers, by what their calls are about.
const (
	ControllerNode    Controller = "node"    // cloud-node and cloud-node-lifecycle: instances
	ControllerService Controller = "service" // service-lb: balancers
	ControllerRoute   Controller = "route"   // node-route: routes
	ControllerOther   Controller = "other"   // anything else: accounts, zones, event streams
)

// Controllers are all of them.
var Controllers = []Controller{ControllerNode, ControllerService, ControllerRoute, ControllerOther}

// countOf counts the calls that are the controller's, by what they are about.
func (c Controller) countOf(calls Calls) Count {
	switch c {
	case ControllerNode:
		return calls.Of[Instances]
	case ControllerService:
		return calls.Of[Balancers]
	case ControllerRoute:
		return calls.Of[Routes]
	default:
		rest := calls.Count
		for _, about := range calls.Of {
			rest = rest.minus(about)
		}
		return rest
	}
}

// minus is the calls since an earlier count.
func (c Count) minus(before Count) Count {
	return Count{Reads: c.Reads - before.Reads, Writes: c.Writes - before.Writes}
}

// And adds two counts.
func (c Count) And(other Count) Count {
	return Count{Reads: c.Reads + other.Reads, Writes: c.Writes + other.Writes}
}

// Since are the calls made after an earlier count.
func (c Calls) Since(before Calls) Calls {
	since := Calls{Count: c.minus(before.Count), Of: map[Thing]Count{}}
	for thing, count := range c.Of {
		since.Of[thing] = count.minus(before.Of[thing])
	}
	return since
}

// Spent is what one phase cost one controller.
type Spent struct {
	Nodes      int        `json:"nodes"`
	Phase      Phase      `json:"phase"`
	Controller Controller `json:"controller"`
	Reads      int        `json:"reads"`
	Writes     int        `json:"writes"`
	// Each is what a Node or a Service, as Per says, cost: reads and writes.
	Each float64 `json:"each"`
	Per  string  `json:"per"`
	// Limit is for Each. It allows for how long the phase took.
	Limit    float64 `json:"limit"`
	duration time.Duration
}

// Exceeds tells whether it is more than it may be.
func (s Spent) Exceeds() bool { return s.Each > s.Limit }

// controllerAdvice says what most often makes a controller's calls many.
var controllerAdvice = map[Controller]string{
	ControllerNode:    "list instances, page by page, and answer for all Nodes from that, instead of asking the cloud about each",
	ControllerService: "find a Service's balancer in one call, give it all of its targets in one, and do not ask without a pause until it is ready",
	ControllerRoute:   "list routes once for all Nodes, and write only the one that is missing",
	ControllerOther:   "ask what seldom changes, as accounts, zones and types, once for all Nodes",
}

// String is a sentence about what exceeds its limit.
func (s Spent) String() string {
	return fmt.Sprintf("%d Nodes, phase %s: calls about what the %s controller sees to were %s per %s (%d reads, %d writes), and %s is the limit for the %s that it took: %s; "+
		"or allow more, as %s in the file of --budget",
		s.Nodes, s.Phase, s.Controller, Digits(s.Each), s.Per, s.Reads, s.Writes, Digits(s.Limit),
		s.duration.Round(time.Second), controllerAdvice[s.Controller], limitKey(s.Nodes, s.Phase, s.Controller))
}

// Digits are those of a number of calls.
func Digits(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// Limits are the calls that each Node, or each Service, may cost.
type Limits map[int]map[Phase]map[Controller]float64

// BudgetSizes are the numbers of Nodes that the budget is looked at with.
var BudgetSizes = []int{10, 150, 1000}

// BudgetServices is how many Services are created, changed and deleted.
const BudgetServices = 5

// limitPage is as many things as a page of a cloud's list has. Clouds have pages
// of 50 up to 1,000; a hundred is little.
const limitPage = 100

// What the default limits allow. None is about a CCM's taste: they are far above
// what one costs that remembers what it has listed, and at 150 Nodes and more
// below the one call for each Node of one that does not.
const (
	listsAtWork  = 30 // times that all instances, or routes, may be listed in a phase
	listsAtRest  = 15 // and while nothing happens
	callsAtLarge = 30 // in a phase, about what does not grow with Nodes
	routeWrites  = 2  // for each Node: its route, and one that was in the way

	// Besides, all instances and all routes may be listed so often in each second that
	// a phase takes: what a controller does each period grows with time, whatever else
	// there is to do. In a lab, upstream's route controller has a period of a second.
	listsPerSecond = 1
)

// serviceCalls are what a Service may cost, however many Nodes there are: to find
// its balancer, to write it, and to ask whether it is ready.
var serviceCalls = map[Phase]float64{PhaseCreated: 20, PhaseChanged: 15, PhaseDeleted: 15}

// DefaultLimits hold where a project sets none.
func DefaultLimits() Limits {
	limits := Limits{}
	for _, nodes := range BudgetSizes {
		limits[nodes] = map[Phase]map[Controller]float64{}
		for _, phase := range Phases {
			limits[nodes][phase] = defaultLimits(nodes, phase)
		}
	}
	return limits
}

func defaultLimits(nodes int, phase Phase) map[Controller]float64 {
	units, lists := float64(nodes), float64(listsAtWork)
	if phase.PerService() {
		units = BudgetServices
	}
	if phase == PhaseRest {
		lists = listsAtRest
	}
	pages := pageCount(nodes)
	limits := map[Controller]float64{
		ControllerNode: lists * pages / units, ControllerRoute: lists * pages / units,
		ControllerService: callsAtLarge / units, ControllerOther: callsAtLarge / units,
	}
	if phase == PhaseInitialize {
		limits[ControllerRoute] += routeWrites
	}
	if phase.PerService() {
		limits[ControllerService] = serviceCalls[phase]
	}
	return limits
}

// AllowedAtRest is how many calls each controller may make in a time in which nothing happens.
func AllowedAtRest(nodes int, took time.Duration) map[Controller]int {
	allowed := map[Controller]int{}
	for c, each := range defaultLimits(nodes, PhaseRest) {
		allowed[c] = int(math.Round((each + timeAllowance(nodes, nodes, c, took)) * float64(nodes)))
	}
	return allowed
}

// pageCount is how many calls a list of so many things takes.
func pageCount(things int) float64 { return float64((things + limitPage - 1) / limitPage) }

// timeAllowance is by how many calls a controller may exceed its limit, for each of units (Nodes or
// Services), because the phase took so long.
func timeAllowance(nodes, units int, c Controller, took time.Duration) float64 {
	if c != ControllerNode && c != ControllerRoute {
		return 0
	}
	return listsPerSecond * took.Seconds() * pageCount(nodes) / float64(units)
}

func limitKey(nodes int, phase Phase, c Controller) string {
	return fmt.Sprintf("%d.%s.%s", nodes, phase, c)
}

// ParseLimits reads limits as YAML has them; those that it leaves out are the
// default ones. A name that there is not is an error, as is a number below 0.
func ParseLimits(text []byte) (Limits, error) {
	var given map[string]map[string]map[string]*float64
	if err := yaml.UnmarshalStrict(text, &given); err != nil {
		return nil, fmt.Errorf("limits are numbers, by number of Nodes, phase and controller: %w", err)
	}
	limits := DefaultLimits()
	var errs []error
	for _, size := range slices.Sorted(maps.Keys(given)) {
		nodes, err := strconv.Atoi(size)
		if err != nil || !slices.Contains(BudgetSizes, nodes) {
			errs = append(
				errs, fmt.Errorf("%s: the budget is looked at with so many Nodes: %s", size, joinNames(BudgetSizes)),
			)
			continue
		}
		for _, phase := range slices.Sorted(maps.Keys(given[size])) {
			if !slices.Contains(Phases, Phase(phase)) {
				errs = append(
					errs, fmt.Errorf("%s.%s: there is no such phase: choose from %s", size, phase, joinNames(Phases)),
				)
				continue
			}
			errs = append(errs, limits.setLimits(nodes, Phase(phase), given[size][phase]))
		}
	}
	return limits, errors.Join(errs...)
}

func (l Limits) setLimits(nodes int, phase Phase, given map[string]*float64) error {
	var errs []error
	for _, controller := range slices.Sorted(maps.Keys(given)) {
		name, limit := limitKey(nodes, phase, Controller(controller)), given[controller]
		switch {
		case !slices.Contains(Controllers, Controller(controller)):
			errs = append(
				errs, fmt.Errorf("%s: there is no such controller: choose from %s", name, joinNames(Controllers)),
			)
		case limit == nil || *limit < 0:
			errs = append(errs, fmt.Errorf("%s: want a number of calls, 0 or more", name))
		default:
			l[nodes][phase][Controller(controller)] = *limit
		}
	}
	return errors.Join(errs...)
}

func joinNames[T any](all []T) string {
	var s []string
	for _, one := range all {
		s = append(s, fmt.Sprint(one))
	}
	return strings.Join(s, ", ")
}

// YAML is what ParseLimits reads, in the order of the phases.
func (l Limits) YAML() []byte {
	var out bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	p("# Calls of the cloud's API, reads and writes together, that each Node or each\n# Service may cost at most: by number of Nodes, phase, and controller. The node\n# and the route controller may list all once more in each second of the phase.")
	for _, nodes := range slices.Sorted(maps.Keys(l)) {
		p("%d:", nodes)
		for _, phase := range Phases {
			per := "Node"
			if phase.PerService() {
				per = "Service"
			}
			p("  %s: # per %s", phase, per)
			for _, controller := range Controllers {
				p("    %s: %s", controller, Digits(l[nodes][phase][controller]))
			}
		}
	}
	return out.Bytes()
}

// Budget returns what a phase with so many Nodes has cost each controller. units is the number of Nodes, or of
// Services, that the calls were made for, and took is how long the phase lasted.
func (s *Suite) Budget(nodes int, phase Phase, units int, took time.Duration, calls Calls) []Spent {
	per := "Node"
	if phase.PerService() {
		per = "Service"
	}
	var rows []Spent
	for _, controller := range Controllers {
		count := controller.countOf(calls)
		rows = append(rows, Spent{
			Nodes: nodes, Phase: phase, Controller: controller, Reads: count.Reads, Writes: count.Writes,
			Each: roundToThousandths(float64(count.Reads+count.Writes) / float64(units)), Per: per,
			Limit: roundToThousandths(
				s.limits[nodes][phase][controller] + timeAllowance(nodes, units, controller, took),
			), duration: took,
		})
	}
	return rows
}

func roundToThousandths(n float64) float64 { return math.Round(n*1000) / 1000 }

// Within tells whether none of them exceeds its limit.
func Within(rows []Spent) bool { return !slices.ContainsFunc(rows, Spent.Exceeds) }

// Record puts what was spent into the report. What exceeds its limit fails the
// test, which goes on.
func (t *T) Record(rows []Spent) {
	t.mu.Lock()
	t.spent = append(t.spent, rows...)
	t.mu.Unlock()
	for _, row := range rows {
		if row.Exceeds() {
			t.Errorf("%s", row)
		}
	}
}
