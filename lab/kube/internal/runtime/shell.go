package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

const (
	// exitUsage, exitNotFound and exitKilled are the shell's own codes.
	exitUsage    = 2
	exitNotFound = 127

	// maxWords bounds what a script can make this process hold: the text that it
	// is given, as often as it expands some.
	maxWords = 1 << 20
)

// shellBuiltins are the interpreter's own commands that are let through. The
// others look at the real machine's files (command, type, cd, source), parse
// text behind the back of understood (eval, trap), or make variables out of more
// than the script (read, set, printf with its widths).
var shellBuiltins = []string{":", "[", "break", "continue", "echo", "exec", "exit", "false", "shift", "test", "true", "unset"}

// process is one command in a container, and what it was started with.
type process struct {
	files    rootFS
	hostname string

	environment []string
	directory   string
	stdin       *os.File // nil if there is none
	stdout      io.Writer
	stderr      io.Writer

	runner *interp.Runner
}

// execute runs one command with the words as they are, or a script.
func (p *process) execute(ctx context.Context, argv []string) int {
	given := 0
	for _, text := range slices.Concat(argv, p.environment) {
		given += len(text)
	}
	if given > maxWords {
		return p.fail(exitUsage, "arguments and environment of more than %d KiB are refused", maxWords>>10)
	}
	var node syntax.Node
	var parameters []string
	var err error
	if len(argv) > 0 && slices.Contains(shells, path.Base(argv[0])) {
		if len(argv) < 3 || argv[1] != "-c" {
			return p.fail(exitUsage, "%s", onlyScripts)
		}
		node, err = parse(argv[2], given)
		parameters = argv[min(4, len(argv)):] // argv[3] is $0
	} else {
		call := &syntax.CallExpr{}
		for _, word := range argv {
			call.Args = append(call.Args, &syntax.Word{Parts: []syntax.WordPart{&syntax.SglQuoted{Value: word}}})
		}
		node = call
	}
	if err == nil {
		err = p.newRunner(parameters)
	}
	if err != nil {
		return p.fail(exitUsage, "%v", err)
	}
	return p.run(ctx, node)
}

// onlyScripts refuses an interactive shell, one that reads its stdin or a file, and
// one in another.
const onlyScripts = `this simulated container has no shell to type in: kubectl exec POD -- sh -c "…" works, and no shell inside of it`

// newRunner gives the process an interpreter. All that it asks of a system it
// asks the handlers here.
func (p *process) newRunner(parameters []string) (err error) {
	p.runner, err = interp.New(
		interp.Dir("/"), // is looked up on the real machine, and replaced below
		interp.Env(root{expand.ListEnviron(p.environment...)}),
		interp.Params(slices.Concat([]string{"-f", "--"}, parameters)...), // -f: no wildcards, of which one can be many words
		interp.CallHandler(allow),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return p.command }),
		interp.OpenHandler(func(ctx context.Context, name string, flag int, perm fs.FileMode) (io.ReadWriteCloser, error) {
			return p.files.open(absolute(ctx, name), flag, perm)
		}),
		interp.StatHandler(func(_ context.Context, name string, follow bool) (fs.FileInfo, error) {
			return p.files.stat(name, follow)
		}),
	)
	if err != nil {
		return err
	}
	if p.stdin != nil {
		err = interp.StdIO(p.stdin, p.stdout, p.stderr)(p.runner)
	} else {
		err = interp.StdIO(nil, p.stdout, p.stderr)(p.runner)
	}
	p.runner.Dir = p.directory
	return err
}

// root are the variables of the user that a container has by default. They are not
// exported; without them the interpreter tells the real user's.
type root struct{ expand.Environ }

func (r root) Get(name string) expand.Variable {
	found := r.Environ.Get(name)
	if !found.IsSet() && slices.Contains([]string{"UID", "EUID", "GID"}, name) {
		return expand.Variable{Set: true, ReadOnly: true, Kind: expand.String, Str: "0"}
	}
	return found
}

func absolute(ctx context.Context, name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(interp.HandlerCtx(ctx).Dir, name)
}

// run returns the exit code of a node that understood has let through. A mistake
// of the interpreter's own ends the command, not the node.
func (p *process) run(ctx context.Context, node syntax.Node) (code int) {
	defer func() {
		if mistake := recover(); mistake != nil {
			code = p.fail(exitUsage, "this is not understood: %v", mistake)
		}
	}()
	err := p.runner.Run(ctx, node)
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case ctx.Err() != nil || errors.Is(err, context.Canceled): // or the command before, of which exit repeats the end
		return exitKilled
	}
	return p.fail(1, "%v", err)
}

func (p *process) fail(code int, format string, values ...any) int {
	_, _ = fmt.Fprintf(p.stderr, "sh: "+format+"\n", values...)
	return code
}

// parse refuses a script of which some is beyond this shell. It was given so much
// text, itself included, which is also the most that a variable can hold.
func parse(script string, given int) (*syntax.File, error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, err
	}
	if n := expansions(file); n*given > maxWords {
		return nil, fmt.Errorf("%d times $… with %d KiB of script, arguments and environment is more than this simulated container expands", n, given>>10)
	}
	return file, understood(file)
}

func expansions(node syntax.Node) (n int) {
	syntax.Walk(node, func(node syntax.Node) bool {
		if _, is := node.(*syntax.ParamExp); is {
			n++
		}
		return true
	})
	return n
}

// allow is called for each simple command. A builtin that is not let through gets
// a path, which makes the interpreter look for it among the commands here.
func allow(_ context.Context, argv []string) ([]string, error) {
	if path.IsAbs(argv[0]) {
		argv[0] = path.Base(argv[0])
	}
	switch {
	case argv[0] == "[" || argv[0] == "test":
		return testable(argv), nil
	case interp.IsBuiltin(argv[0]) && !slices.Contains(shellBuiltins, argv[0]):
		argv[0] = "/bin/" + argv[0]
	}
	return argv, nil
}

// testable has test ask whether a file exists where it would ask the kernel
// whether the real machine's file of that name may be read.
func testable(argv []string) []string {
	for i := 1; i < len(argv); i++ {
		switch argv[i] {
		case "-r", "-w", "-x", "-O", "-G":
			if i == 1 || slices.Contains([]string{"!", "(", "-a", "-o"}, argv[i-1]) {
				argv[i] = "-e"
			}
		}
	}
	return argv
}

// understood refuses what would start goroutines that nothing could recover
// (pipes, &), recurse without end (functions), make the interpreter panic (odd
// redirections), or have words and variables grow beyond what was given.
func understood(file *syntax.File) (err error) {
	syntax.Walk(file, func(node syntax.Node) bool {
		if node != nil && err == nil && !simple(node) {
			err = fmt.Errorf("%s: this simulated container's shell knows commands, quotes, $VARIABLE and ${VARIABLE:-text}, && and ||, "+
				"if, while, for, case, > >> <, and assignments of either text or one variable; no $(…), pipes, functions, arithmetic or background", node.Pos())
		}
		return err == nil
	})
	return err
}

func simple(node syntax.Node) bool {
	switch n := node.(type) {
	case *syntax.File, *syntax.Comment, *syntax.CallExpr, *syntax.Block, *syntax.IfClause, *syntax.WhileClause,
		*syntax.CaseClause, *syntax.CaseItem, *syntax.Lit, *syntax.SglQuoted, *syntax.DblQuoted:
		return true
	case *syntax.Stmt:
		return !n.Background && !n.Coprocess
	case *syntax.BinaryCmd:
		return n.Op == syntax.AndStmt || n.Op == syntax.OrStmt
	case *syntax.ForClause:
		return !n.Select
	case *syntax.WordIter:
		return !slices.ContainsFunc(n.Items, grows)
	case *syntax.Assign:
		return n.Index == nil && n.Array == nil && !n.Append && (n.Value == nil || !grows(n.Value))
	case *syntax.ParamExp:
		defaults := n.Exp != nil && (n.Exp.Op == syntax.DefaultUnset || n.Exp.Op == syntax.DefaultUnsetOrNull) &&
			(n.Exp.Word == nil || expansions(n.Exp.Word) == 0)
		return !n.Excl && !n.Length && !n.Width && n.Index == nil && n.Slice == nil && n.Repl == nil && n.Names == 0 && (n.Exp == nil || defaults)
	case *syntax.Word:
		return plain(n)
	case *syntax.Redirect:
		return file(n)
	}
	return false
}

// grows says that a variable with this value could be longer than what it is made
// of, and in a loop as long as there is memory.
func grows(value *syntax.Word) bool {
	parts := value.Parts
	if len(parts) == 1 {
		if quoted, is := parts[0].(*syntax.DblQuoted); is {
			parts = quoted.Parts
		}
	}
	return len(parts) > 1 && expansions(value) > 0
}

// plain says that a word is neither {a,b} nor ~someone.
func plain(word *syntax.Word) bool {
	split := syntax.Word{Parts: slices.Clone(word.Parts)}
	literal, _ := word.Parts[0].(*syntax.Lit)
	return !syntax.SplitBraces(&split) && (literal == nil || !strings.HasPrefix(literal.Value, "~"))
}

func file(redirect *syntax.Redirect) bool {
	number := ""
	if redirect.N != nil {
		number = redirect.N.Value
	}
	switch redirect.Op {
	case syntax.RdrIn:
		return number == "" || number == "0"
	case syntax.RdrOut, syntax.AppOut:
		return number == "" || number == "1" || number == "2"
	case syntax.DplOut:
		to := redirect.Word.Lit()
		return (number == "" || number == "1" || number == "2") && (to == "1" || to == "2")
	}
	return false
}
