package lessons

// This file answers: what may a condition speak of, and does it hold?
//
// Conditions are in CEL, as Kubernetes' own validation is. Things are maps by name,
// objects as `kubectl get -o yaml` and the cloud's API have them:
//
//	nodes, pods, services, deployments, configmaps, leases
//	        by name, those outside namespace "default" as namespace/name
//	instances, routes, faults
//	        the cloud's, by name, faults by ID
//	balancers
//	        the cloud's, by the Service they are for, as services has it
//	stats   their counters, likewise
//	spent   how often a caller made a call: spent.ccm.listInstances
//	runs    which of the lab's components run: runs.ccm
//	own     whether that CCM is the lab's own, and no other program
//	e       the entry of the timeline, in Saw, and the call, in Called
//
// ROLE.nodes, and so on, are those of the lesson's other lab of this role. Beside
// CEL's own there are tainted(node, key), ready(object) and address(node, type).

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
)

// variables are the names of what there is in a lab.
var variables = []string{
	"nodes", "pods", "services", "deployments", "configmaps", "leases",
	"instances", "routes", "faults", "balancers", "stats", "spent", "runs", "own",
}

// entryName is that of an entry.
const entryName = "e"

// language is what the conditions of one lesson are written in.
type language struct{ env *cel.Env }

func newLanguage(roles []string) (*language, error) {
	options := []cel.EnvOption{
		cel.OptionalTypes(), ext.Strings(), ext.Lists(), cel.Variable(entryName, cel.DynType),
		function("tainted", cel.BoolType, tainted, cel.DynType, cel.StringType),
		function("address", cel.StringType, address, cel.DynType, cel.StringType),
		cel.Function("ready", cel.Overload("ready_dyn", []*cel.Type{cel.DynType}, cel.BoolType,
			cel.UnaryBinding(ready))),
	}
	for _, v := range variables {
		options = append(options, cel.Variable(v, cel.DynType))
		for _, role := range roles {
			options = append(options, cel.Variable(role+"."+v, cel.DynType))
		}
	}
	env, err := cel.NewEnv(options...)
	return &language{env}, err
}

// function is one of two arguments.
func function(name string, result *cel.Type, f func(a, b ref.Val) ref.Val, args ...*cel.Type) cel.EnvOption {
	return cel.Function(name, cel.Overload(name+"_"+args[0].String()+"_"+args[1].String(), args, result, cel.BinaryBinding(f)))
}

// expression is one that can be evaluated.
type expression struct {
	source  string
	program cel.Program
}

func (l *language) expression(source string) (*expression, error) {
	ast, issues := l.env.Compile(source)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%q: %w", source, issues.Err())
	}
	program, err := l.env.Program(ast)
	return &expression{source, program}, err
}

// holds evaluates a condition. Where something is missing that it speaks of, it does
// not hold: things come and go.
func (x *expression) holds(in cel.Activation) (bool, error) {
	out, _, err := x.program.Eval(in)
	switch {
	case missing(err):
		return false, nil
	case err != nil:
		return false, x.failed(err)
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%s is %v, which is neither true nor false", x.source, out)
	}
	return holds, nil
}

// text evaluates what is said.
func (x *expression) text(in cel.Activation) (string, error) {
	out, _, err := x.program.Eval(in)
	if err != nil {
		return "", x.failed(err)
	}
	return fmt.Sprint(out.Value()), nil
}

// missing tells whether an expression failed because what it names is not there.
// CEL has no error of a kind of its own for that.
func missing(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "no such key") || strings.Contains(err.Error(), "index out of bounds"))
}

// failed says why an expression has no value. Where something did not answer, its
// source is left out: the learner has no use for it, and may guess the task's solution.
func (x *expression) failed(err error) error {
	var failed *fetchError
	if errors.As(err, &failed) {
		return failed
	}
	return fmt.Errorf("%s: %w", x.source, err)
}

// tainted tells whether a Node has a taint of this key.
func tainted(node, key ref.Val) ref.Val {
	for _, t := range list(native(node), "spec", "taints") {
		if at(t, "key") == key.Value() {
			return types.True
		}
	}
	return types.False
}

// address is the first of a Node's addresses of a type; "" without one.
func address(node, kind ref.Val) ref.Val {
	for _, a := range list(native(node), "status", "addresses") {
		if at(a, "type") == kind.Value() {
			text, _ := at(a, "address").(string)
			return types.String(text)
		}
	}
	return types.String("")
}

// ready tells whether an object has the condition Ready.
func ready(object ref.Val) ref.Val {
	for _, c := range list(native(object), "status", "conditions") {
		if at(c, "type") == "Ready" {
			return types.Bool(at(c, "status") == "True")
		}
	}
	return types.False
}

// native is the JSON that a value was made of.
func native(v ref.Val) any { return v.Value() }

// at is what is there along the keys; nil if nothing is.
func at(v any, keys ...string) any {
	for _, k := range keys {
		object, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = object[k]
	}
	return v
}

func list(v any, keys ...string) []any {
	l, _ := at(v, keys...).([]any)
	return l
}
