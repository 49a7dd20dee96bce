package runtime

// This file answers how a command line is understood: by a real shell's
// interpreter, left with only what cannot reach the real machine.

import (
	"bytes"
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

	// maxScript and maxDepth bound what one command can make this process hold.
	maxScript = 64 << 10
	maxDepth  = 8
)

// shellBuiltins are the interpreter's own commands that are let through. The
// others look at the real machine's files (command, type, cd, source), or parse
// text behind the back of understood (eval, trap).
var shellBuiltins = []string{
	":", "[", "break", "continue", "echo", "exec", "exit", "false", "printf", "read", "set", "shift", "test", "true", "unset", "wait",
}

// process is one command in a container, and what it was started with.
type process struct {
	files    rootFS
	hostname string

	environment []string
	directory   string
	stdin       *os.File // nil if there is none
	stdout      io.Writer
	stderr      io.Writer
	depth       int

	runner *interp.Runner
}

// newRunner gives the process an interpreter. All that it asks of a system it
// asks the handlers here; argv are the options and parameters of set.
func (p *process) newRunner(argv ...string) (err error) {
	p.runner, err = interp.New(
		interp.Dir("/"), // is looked up on the real machine, and replaced below
		interp.Env(expand.ListEnviron(p.environment...)),
		interp.Params(argv...),
		interp.CallHandler(allow),
		interp.ExecHandlers(func(interp.ExecHandlerFunc) interp.ExecHandlerFunc { return p.command }),
		interp.OpenHandler(func(ctx context.Context, name string, flag int, perm fs.FileMode) (io.ReadWriteCloser, error) {
			return p.files.open(absolute(ctx, name), flag, perm)
		}),
		interp.ReadDirHandler2(func(ctx context.Context, name string) ([]fs.DirEntry, error) {
			return p.files.readDir(absolute(ctx, name))
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

// parse refuses a script of which some is beyond this shell.
func parse(from io.Reader) (*syntax.File, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxScript+1))
	if err == nil && len(text) > maxScript {
		err = fmt.Errorf("a script of more than %d KiB is refused", maxScript>>10)
	}
	if err != nil {
		return nil, err
	}
	file, err := syntax.NewParser().Parse(bytes.NewReader(text), "")
	if err != nil {
		return nil, err
	}
	return file, understood(file)
}

// arguments runs one command with the words as they are.
func (p *process) arguments(ctx context.Context, argv []string) int {
	call := &syntax.CallExpr{}
	for _, word := range argv {
		call.Args = append(call.Args, &syntax.Word{Parts: []syntax.WordPart{&syntax.SglQuoted{Value: word}}})
	}
	return p.run(ctx, call)
}

// shell is the command sh: a script in an argument, in a file or on stdin.
func (p *process) shell(ctx context.Context, argv []string) int {
	if p.depth > maxDepth {
		return p.fail(exitUsage, "shells in shells: %d are enough", maxDepth)
	}
	var options []string
	inArgument := false
	for len(argv) > 0 && len(argv[0]) > 1 && argv[0][0] == '-' {
		inArgument = inArgument || strings.Contains(argv[0], "c")
		if letters := strings.NewReplacer("c", "", "l", "").Replace(argv[0][1:]); letters != "" {
			options = append(options, "-"+letters)
		}
		argv = argv[1:]
	}
	var script io.Reader = strings.NewReader("")
	switch {
	case len(argv) > 0 && inArgument:
		script = strings.NewReader(argv[0])
		argv = argv[min(1, len(argv)-1):] // the next is $0
	case len(argv) > 0:
		if !path.IsAbs(argv[0]) {
			argv[0] = path.Join(p.directory, argv[0])
		}
		file, err := p.files.open(argv[0], os.O_RDONLY, 0)
		if err != nil {
			return p.fail(exitNotFound, "%v", err)
		}
		defer func() { _ = file.Close() }()
		script = file
	case inArgument:
		return p.fail(exitUsage, "-c: a script is needed")
	case p.stdin != nil:
		script = p.stdin
	}
	if err := p.newRunner(slices.Concat(options, []string{"--"}, argv[min(1, len(argv)):])...); err != nil {
		return p.fail(exitUsage, "%v", err)
	}
	file, err := parse(script)
	if err != nil {
		return p.fail(exitUsage, "%v", err)
	}
	return p.run(ctx, file)
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
// (pipes, &), recurse without end (functions), or make the interpreter panic
// (odd redirections), and lists of words that braces would multiply.
func understood(file *syntax.File) (err error) {
	syntax.Walk(file, func(node syntax.Node) bool {
		if node != nil && err == nil && !simple(node) {
			err = fmt.Errorf("%s: this simulated container's shell knows commands, quotes, variables, $(…), && and ||, if, while, for, case "+
				"and redirections to files; no pipes, functions, subshells, braces or background", node.Pos())
		}
		return err == nil
	})
	return err
}

func simple(node syntax.Node) bool {
	switch n := node.(type) {
	case *syntax.File, *syntax.Comment, *syntax.CallExpr, *syntax.Block, *syntax.IfClause, *syntax.WhileClause, *syntax.WordIter,
		*syntax.CaseClause, *syntax.CaseItem, *syntax.Lit, *syntax.SglQuoted, *syntax.DblQuoted, *syntax.CmdSubst, *syntax.ArithmExp,
		*syntax.BinaryArithm, *syntax.UnaryArithm, *syntax.ParenArithm:
		return true
	case *syntax.Stmt:
		return !n.Background && !n.Coprocess
	case *syntax.BinaryCmd:
		return n.Op == syntax.AndStmt || n.Op == syntax.OrStmt
	case *syntax.ForClause:
		return !n.Select
	case *syntax.DeclClause:
		return n.Variant.Value == "export" || n.Variant.Value == "readonly"
	case *syntax.Assign:
		return n.Index == nil && n.Array == nil
	case *syntax.ParamExp:
		return !n.Excl && n.Index == nil && n.Names == 0 && (n.Exp == nil || n.Exp.Op != syntax.OtherParamOps)
	case *syntax.Word:
		return plain(n)
	case *syntax.Redirect:
		return file(n)
	}
	return false
}

// plain says that a word is neither {a,b} nor ~someone.
func plain(word *syntax.Word) bool {
	split := syntax.Word{Parts: slices.Clone(word.Parts)}
	if syntax.SplitBraces(&split) {
		return false
	}
	literal, _ := word.Parts[0].(*syntax.Lit)
	return literal == nil || !strings.HasPrefix(literal.Value, "~") || literal.Value == "~" || strings.HasPrefix(literal.Value, "~/")
}

func file(redirect *syntax.Redirect) bool {
	number := ""
	if redirect.N != nil {
		number = redirect.N.Value
	}
	switch redirect.Op {
	case syntax.RdrIn, syntax.Hdoc, syntax.DashHdoc:
		return number == "" || number == "0"
	case syntax.RdrOut, syntax.AppOut:
		return number == "" || number == "1" || number == "2"
	case syntax.DplOut:
		to := redirect.Word.Lit()
		return (number == "" || number == "1" || number == "2") && (to == "1" || to == "2")
	}
	return false
}
