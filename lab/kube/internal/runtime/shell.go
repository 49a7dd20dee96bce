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
	// exitCodeUsage and exitCodeNotFound are those of a shell, as exitCodeKilled is.
	exitCodeUsage    = 2
	exitCodeNotFound = 127

	// maxScriptBytes bounds the memory of a script: the bytes of its text, arguments and
	// environment, times the number of its expansions.
	maxScriptBytes = 1 << 20
)

// shellBuiltins are the interpreter's own commands that scripts may use. Its other ones look at the
// real machine's files (command, type, cd, source), run text that checkSupported has not seen
// (eval, trap), or set variables from more than the script (read, set, printf with its widths).
var shellBuiltins = []string{
	":", "[", "break", "continue", "echo", "exec", "exit", "false", "shift", "test", "true", "unset",
}

// process is one exec command in a container.
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

// runArgv runs a script, if argv is a shell's with -c, or else a command with argv as it is.
func (p *process) runArgv(ctx context.Context, argv []string) int {
	textBytes := 0
	for _, text := range slices.Concat(argv, p.environment) {
		textBytes += len(text)
	}
	if textBytes > maxScriptBytes {
		return p.fail(exitCodeUsage, "arguments and environment of more than %d KiB are refused", maxScriptBytes>>10)
	}
	var node syntax.Node
	var parameters []string
	var err error
	if len(argv) > 0 && slices.Contains(shellNames, path.Base(argv[0])) {
		if len(argv) < 3 || argv[1] != "-c" {
			return p.fail(exitCodeUsage, "%s", noShellText)
		}
		node, err = parseScript(argv[2], textBytes)
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
		return p.fail(exitCodeUsage, "%v", err)
	}
	return p.runNode(ctx, node)
}

// noShellText is the answer to an interactive shell, a shell that reads stdin or a file, and a
// shell in another.
const noShellText = `this simulated container has no shell to type in: kubectl exec POD -- sh -c "…" works, and no shell inside of it`

// newRunner gives the process an interpreter. Its handlers replace all access to the real system.
func (p *process) newRunner(parameters []string) (err error) {
	p.runner, err = interp.New(
		interp.Dir("/"), // The interpreter looks it up on the real machine. It is replaced below.
		interp.Env(rootVariables{expand.ListEnviron(p.environment...)}),
		// -f: no wildcards, which could become any number of words.
		interp.Params(slices.Concat([]string{"-f", "--"}, parameters)...),
		interp.CallHandler(filterCall),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return p.runCommand }),
		interp.OpenHandler(func(
			ctx context.Context,
			name string,
			flag int,
			perm fs.FileMode,
		) (io.ReadWriteCloser, error) {
			return p.files.openFile(absolutePath(ctx, name), flag, perm)
		}),
		interp.StatHandler(func(_ context.Context, name string, follow bool) (fs.FileInfo, error) {
			return p.files.statFile(name, follow)
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

// rootVariables adds the user ID and group ID of root, a container's default user, to an
// environment. They are not exported. Without them the interpreter has those of the real user.
type rootVariables struct{ expand.Environ }

func (r rootVariables) Get(name string) expand.Variable {
	found := r.Environ.Get(name)
	if !found.IsSet() && slices.Contains([]string{"UID", "EUID", "GID"}, name) {
		return expand.Variable{Set: true, ReadOnly: true, Kind: expand.String, Str: "0"}
	}
	return found
}

func absolutePath(ctx context.Context, name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(interp.HandlerCtx(ctx).Dir, name)
}

// runNode runs a syntax node that checkSupported has accepted, and returns its exit code. A panic
// of the interpreter ends the command, and not this program.
func (p *process) runNode(ctx context.Context, node syntax.Node) (code int) {
	defer func() {
		if mistake := recover(); mistake != nil {
			code = p.fail(exitCodeUsage, "this is not understood: %v", mistake)
		}
	}()
	err := p.runner.Run(ctx, node)
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	case ctx.Err() != nil || errors.Is(err, context.Canceled): // exit repeats the error of the command before.
		return exitCodeKilled
	}
	return p.fail(1, "%v", err)
}

func (p *process) fail(code int, format string, values ...any) int {
	_, _ = fmt.Fprintf(p.stderr, "sh: "+format+"\n", values...)
	return code
}

// parseScript parses a script, and refuses one that this shell does not support or that could
// expand to too much. textBytes is the size of script, arguments and environment; no variable can
// be longer.
func parseScript(script string, textBytes int) (*syntax.File, error) {
	file, err := syntax.NewParser().Parse(strings.NewReader(script), "")
	if err != nil {
		return nil, err
	}
	if n := countExpansions(file); n*textBytes > maxScriptBytes {
		return nil, fmt.Errorf(
			"%d times $… with %d KiB of script, arguments and environment is more than this simulated container expands",
			n, textBytes>>10,
		)
	}
	return file, checkSupported(file)
}

// countExpansions counts the expansions of parameters in a node.
func countExpansions(node syntax.Node) (n int) {
	syntax.Walk(node, func(node syntax.Node) bool {
		if _, is := node.(*syntax.ParamExp); is {
			n++
		}
		return true
	})
	return n
}

// filterCall is called for each simple command. It gives a builtin that is not in shellBuiltins a
// path, so that the interpreter runs a simulated command of that name instead.
func filterCall(_ context.Context, argv []string) ([]string, error) {
	if path.IsAbs(argv[0]) {
		argv[0] = path.Base(argv[0])
	}
	switch {
	case argv[0] == "[" || argv[0] == "test":
		return withoutPermissionTests(argv), nil
	case interp.IsBuiltin(argv[0]) && !slices.Contains(shellBuiltins, argv[0]):
		argv[0] = "/bin/" + argv[0]
	}
	return argv, nil
}

// withoutPermissionTests replaces tests of permissions by -e, does the file exist: the interpreter
// would ask the kernel about the real machine's file of that name.
func withoutPermissionTests(argv []string) []string {
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

// checkSupported refuses a script that would start goroutines whose panics nothing could recover
// (pipes, &), recurse without end (functions), make the interpreter panic (odd redirections), or
// make words and variables longer than the script's text.
func checkSupported(file *syntax.File) (err error) {
	syntax.Walk(file, func(node syntax.Node) bool {
		if node != nil && err == nil && !isSupportedNode(node) {
			err = fmt.Errorf("%s: this simulated container's shell knows commands, quotes, $VARIABLE and ${VARIABLE:-text}, && and ||, "+
				"if, while, for, case, > >> <, and assignments of either text or one variable; no $(…), pipes, functions, arithmetic or background", node.Pos())
		}
		return err == nil
	})
	return err
}

// isSupportedNode reports whether a node, apart from the nodes in it, is supported.
func isSupportedNode(node syntax.Node) bool {
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
		return !slices.ContainsFunc(n.Items, canGrow)
	case *syntax.Assign:
		return n.Index == nil && n.Array == nil && !n.Append && (n.Value == nil || !canGrow(n.Value))
	case *syntax.ParamExp:
		defaults := n.Exp != nil && (n.Exp.Op == syntax.DefaultUnset || n.Exp.Op == syntax.DefaultUnsetOrNull) &&
			(n.Exp.Word == nil || countExpansions(n.Exp.Word) == 0)
		return !n.Excl && !n.Length && !n.Width && n.Index == nil && n.Slice == nil && n.Repl == nil && n.Names == 0 &&
			(n.Exp == nil || defaults)
	case *syntax.Word:
		return isPlainWord(n)
	case *syntax.Redirect:
		return isSupportedRedirect(n)
	}
	return false
}

// canGrow reports whether a variable with this value could be longer than the variables in it. In a
// loop it could take all memory.
func canGrow(value *syntax.Word) bool {
	parts := value.Parts
	if len(parts) == 1 {
		if quoted, is := parts[0].(*syntax.DblQuoted); is {
			parts = quoted.Parts
		}
	}
	return len(parts) > 1 && countExpansions(value) > 0
}

// isPlainWord reports whether a word is neither {a,b} nor ~someone.
func isPlainWord(word *syntax.Word) bool {
	split := syntax.Word{Parts: slices.Clone(word.Parts)}
	literal, _ := word.Parts[0].(*syntax.Lit)
	return !syntax.SplitBraces(&split) && (literal == nil || !strings.HasPrefix(literal.Value, "~"))
}

// isSupportedRedirect reports whether a redirection is of stdin, stdout or stderr.
func isSupportedRedirect(redirect *syntax.Redirect) bool {
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
