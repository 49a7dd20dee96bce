package lessons

// Conditions are written in CEL, as Kubernetes' own validation rules are. The variables
// are maps by name, and objects are as `kubectl get -o yaml` and the cloud's API print
// them:
//
//	nodes, pods, services, deployments, configmaps, leases, roles, rolebindings, clusterroles,
//	clusterrolebindings
//	        by name, with "NAMESPACE/" before it outside of namespace "default"
//	instances, routes, faults, tokens
//	        the cloud's, by name, and faults by ID
//	balancers
//	        the cloud's, by the key of their Service in services
//	stats   their counters, likewise
//	spent   the number of calls by caller and operation: spent.ccm.listInstances
//	calls   the latest calls of the cloud's API, by request ID, as e in Called; only those of
//	        the lesson's own lab, and without the calls that the lab itself makes
//	timeline
//	        its entries, oldest first, each as e in Saw; only those of the lesson's own lab
//	logs    the latest lines of each pod's log in namespace "default", by pod
//	runs    which of the lab's components run: runs.ccm
//	processes
//	        the processes of these components: when one began, and whether a signal has
//	        stopped it: processes.ccm.began, processes.ccm.paused
//	log     the latest lines of the log of the lab's own CCM, where that is a process
//	own     whether that CCM is the lab's own program
//	e       in Saw the entry of the timeline, in Called the call
//
// ROLE.nodes and so on are the variables of the lesson's other lab of this role.
// Functions beside CEL's own: tainted(node, key), ready(object), address(node, type), and
// held(lease): whether somebody has renewed it within its duration.

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
)

// variables are the names of what a lab has.
var variables = []string{
	"nodes", "pods", "services", "deployments", "configmaps", "leases",
	"roles", "rolebindings", "clusterroles", "clusterrolebindings",
	"instances", "routes", "faults", "tokens", "balancers", "stats", "spent", "calls", "timeline", "logs", "runs",
	"processes", "log", "own",
}

// entryName is the variable with the entry of the timeline.
const entryName = "e"

// celLanguage compiles the conditions of one lesson.
type celLanguage struct{ env *cel.Env }

func newCELLanguage(roles []string) (*celLanguage, error) {
	options := []cel.EnvOption{
		cel.OptionalTypes(), ext.Strings(), ext.Lists(), cel.Variable(entryName, cel.DynType),
		binaryFunction("tainted", cel.BoolType, hasTaint, cel.DynType, cel.StringType),
		binaryFunction("address", cel.StringType, nodeAddress, cel.DynType, cel.StringType),
		predicate("ready", isReady), predicate("held", isHeld),
	}
	for _, v := range variables {
		options = append(options, cel.Variable(v, cel.DynType))
		for _, role := range roles {
			options = append(options, cel.Variable(role+"."+v, cel.DynType))
		}
	}
	env, err := cel.NewEnv(options...)
	return &celLanguage{env}, err
}

// predicate declares a function that tells something of an object.
func predicate(name string, is func(object ref.Val) ref.Val) cel.EnvOption {
	return cel.Function(name, cel.Overload(name+"_dyn", []*cel.Type{cel.DynType}, cel.BoolType, cel.UnaryBinding(is)))
}

// binaryFunction declares a function of two arguments.
func binaryFunction(name string, result *cel.Type, f func(a, b ref.Val) ref.Val, args ...*cel.Type) cel.EnvOption {
	return cel.Function(
		name, cel.Overload(name+"_"+args[0].String()+"_"+args[1].String(), args, result, cel.BinaryBinding(f)),
	)
}

// expression is a compiled condition or message.
type expression struct {
	source  string
	program cel.Program
}

func (c *celLanguage) compileExpression(source string) (*expression, error) {
	ast, issues := c.env.Compile(source)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%q: %w", source, issues.Err())
	}
	program, err := c.env.Program(ast)
	return &expression{source, program}, err
}

// evalBool evaluates a condition. It is false if an object that it uses does not exist:
// objects come and go.
func (e *expression) evalBool(in cel.Activation) (bool, error) {
	out, _, err := e.program.Eval(in)
	switch {
	case isMissingKey(err):
		return false, nil
	case err != nil:
		return false, e.evalError(err)
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%s is %v, which is neither true nor false", e.source, out)
	}
	return holds, nil
}

// evalString evaluates a message.
func (e *expression) evalString(in cel.Activation) (string, error) {
	out, _, err := e.program.Eval(in)
	if err != nil {
		return "", e.evalError(err)
	}
	return fmt.Sprint(out.Value()), nil
}

// isMissingKey tells whether an evaluation failed because an object or field does not
// exist. CEL has no typed error for that.
func isMissingKey(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "no such key") ||
		strings.Contains(err.Error(), "index out of bounds"))
}

// evalError describes why an evaluation failed. The expression's source is left out
// where a query failed: it does not help the learner, and may give the task's solution
// away.
func (e *expression) evalError(err error) error {
	var failed *fetchError
	if errors.As(err, &failed) {
		return failed
	}
	return fmt.Errorf("%s: %w", e.source, err)
}

// hasTaint tells whether a Node has a taint with this key.
func hasTaint(node, key ref.Val) ref.Val {
	for _, t := range listAt(nativeValue(node), "spec", "taints") {
		if fieldAt(t, "key") == key.Value() {
			return types.True
		}
	}
	return types.False
}

// nodeAddress is the first of a Node's addresses of a type; "" without one.
func nodeAddress(node, kind ref.Val) ref.Val {
	for _, a := range listAt(nativeValue(node), "status", "addresses") {
		if fieldAt(a, "type") == kind.Value() {
			text, _ := fieldAt(a, "address").(string)
			return types.String(text)
		}
	}
	return types.String("")
}

// isReady tells whether an object has the condition Ready.
func isReady(object ref.Val) ref.Val {
	for _, c := range listAt(nativeValue(object), "status", "conditions") {
		if fieldAt(c, "type") == "Ready" {
			return types.Bool(fieldAt(c, "status") == "True")
		}
	}
	return types.False
}

// isHeld tells whether a Lease has a holder who has renewed it within its duration.
func isHeld(lease ref.Val) ref.Val {
	spec := fieldAt(nativeValue(lease), "spec")
	holder, _ := fieldAt(spec, "holderIdentity").(string)
	seconds, _ := fieldAt(spec, "leaseDurationSeconds").(float64)
	renewed, _ := fieldAt(spec, "renewTime").(string)
	at, err := time.Parse(time.RFC3339, renewed)
	return types.Bool(err == nil && holder != "" && time.Since(at) < time.Duration(seconds)*time.Second)
}

// nativeValue is the JSON value behind a CEL value.
func nativeValue(v ref.Val) any { return v.Value() }

// fieldAt is the value along a path of keys; nil if there is none.
func fieldAt(v any, keys ...string) any {
	for _, k := range keys {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = object[k]
	}
	return v
}

func listAt(v any, keys ...string) []any {
	l, _ := fieldAt(v, keys...).([]any)
	return l
}
