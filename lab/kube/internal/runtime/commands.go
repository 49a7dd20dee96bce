package runtime

// This file answers which commands a container has.

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
)

const helpText = `This is a simulated container. It has no processes and its image is not run;
these commands are the simulation's own. They see the container's environment and
its volumes, besides an empty file system that goes with the container.

  cat, date, echo, env, false, hostname, ls, mkdir, printf, pwd, rm, sleep, test,
  touch, true, help
  sh         -c "…", a file or stdin: && || ; if while for case, $(…), variables and
             > < to files; no pipes and no functions
  exit N     as the command of kubectl exec (not in sh): the container itself ends
             with that code
`

// call is one command that is being executed.
type call struct {
	interp.HandlerContext
	process *process
	argv    []string
}

var commands = map[string]func(context.Context, *call) error{
	"cat":      cat,
	"cd":       cd,
	"date":     date,
	"env":      env,
	"help":     help,
	"hostname": hostname,
	"ls":       ls,
	"mkdir":    mkdir,
	"pwd":      pwd,
	"rm":       rm,
	"sleep":    sleep,
	"touch":    touch,
}

// shells are all the same one.
var shells = []string{"sh", "ash", "bash", "dash"}

// command executes what is no builtin of the interpreter's.
func (p *process) command(ctx context.Context, argv []string) error {
	c := &call{HandlerContext: interp.HandlerCtx(ctx), process: p, argv: argv}
	name := path.Base(argv[0])
	do, known := commands[name]
	if slices.Contains(shells, name) {
		do, known = sh, true
	}
	if !known {
		_, _ = fmt.Fprintf(c.Stderr, "sh: %s: not found: this is a simulated container and its image is not run; help lists what works\n", name)
		return interp.ExitStatus(exitNotFound)
	}
	err := do(ctx, c)
	if _, isStatus := err.(interp.ExitStatus); err == nil || isStatus {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, _ = fmt.Fprintf(c.Stderr, "%s: %v\n", name, err)
	return interp.ExitStatus(1)
}

// options takes leading options off the arguments. Only the letters given are
// known.
func (c *call) options(letters string) (given string, operands []string, err error) {
	operands = c.argv[1:]
	for len(operands) > 0 && len(operands[0]) > 1 && operands[0][0] == '-' {
		option := operands[0]
		operands = operands[1:]
		if option == "--" {
			break
		}
		if unknown := strings.Trim(option[1:], letters); unknown != "" {
			return "", nil, fmt.Errorf("option %s is not known to this simulation; -%s are", option, letters)
		}
		given += option[1:]
	}
	return given, operands, nil
}

func (c *call) path(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(c.Dir, name)
}

func (c *call) print(format string, values ...any) error {
	_, err := fmt.Fprintf(c.Stdout, format, values...)
	return err
}

// forEach goes on after an error, as these commands do, and returns the first.
func (c *call) forEach(names []string, do func(string) error) (first error) {
	if len(names) == 0 {
		return fmt.Errorf("the name of a file is needed")
	}
	for _, name := range names {
		if err := do(c.path(name)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func cat(_ context.Context, c *call) error {
	names := c.argv[1:]
	if len(names) == 0 {
		if c.Stdin == nil {
			return nil
		}
		_, err := io.Copy(c.Stdout, c.Stdin)
		return err
	}
	return c.forEach(names, func(name string) error {
		file, err := c.process.files.open(name, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		_, err = io.Copy(c.Stdout, file)
		return err
	})
}

// cd is not the interpreter's, which would ask for the real machine's directory.
func cd(_ context.Context, c *call) error {
	to := "/"
	if len(c.argv) > 1 {
		to = c.path(c.argv[1])
	}
	info, err := c.process.files.stat(to, true)
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "cd", Path: to, Err: fmt.Errorf("not a directory")}
	}
	if err == nil {
		c.process.runner.Dir = path.Clean(to)
	}
	return err
}

func pwd(_ context.Context, c *call) error { return c.print("%s\n", c.Dir) }

func date(_ context.Context, c *call) error {
	if len(c.argv) > 1 && c.argv[1] == "+%s" {
		return c.print("%d\n", time.Now().Unix())
	}
	return c.print("%s\n", time.Now().UTC().Format(time.UnixDate))
}

func env(_ context.Context, c *call) error {
	for _, variable := range c.exported() {
		if err := c.print("%s\n", variable); err != nil {
			return err
		}
	}
	return nil
}

// exported is the environment that a command is started with, sorted.
func (c *call) exported() []string {
	last := map[string]expand.Variable{}
	for name, variable := range c.Env.Each {
		last[name] = variable
	}
	var list []string
	for name, variable := range last {
		if variable.Exported && variable.Kind == expand.String {
			list = append(list, name+"="+variable.Str)
		}
	}
	slices.Sort(list)
	return list
}

func help(_ context.Context, c *call) error { return c.print("%s", helpText) }

func hostname(_ context.Context, c *call) error { return c.print("%s\n", c.process.hostname) }

func ls(_ context.Context, c *call) error {
	given, names, err := c.options("1aAlhd")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = []string{"."}
	}
	show := func(info fs.FileInfo, name string) error {
		if !strings.Contains(given, "l") {
			return c.print("%s\n", name)
		}
		return c.print("%s %8d %s %s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format("Jan _2 15:04"), name)
	}
	return c.forEach(names, func(name string) error {
		info, err := c.process.files.stat(name, true)
		if err != nil {
			return err
		}
		if !info.IsDir() || strings.Contains(given, "d") {
			return show(info, name)
		}
		entries, err := c.process.files.readDir(name)
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), ".") && !strings.ContainsAny(given, "aA") {
				continue
			}
			info, err := c.process.files.stat(path.Join(name, entry.Name()), false)
			if err != nil { // a volume that is not opened: its place is there
				if info, err = entry.Info(); err != nil {
					continue
				}
			}
			if err := show(info, entry.Name()); err != nil {
				return err
			}
		}
		return err
	})
}

func mkdir(_ context.Context, c *call) error {
	_, names, err := c.options("p")
	if err != nil {
		return err
	}
	return c.forEach(names, c.process.files.mkdirAll)
}

func rm(_ context.Context, c *call) error {
	given, names, err := c.options("rRf")
	if err != nil {
		return err
	}
	force := strings.Contains(given, "f")
	if force && len(names) == 0 {
		return nil
	}
	return c.forEach(names, func(name string) error {
		if _, err := c.process.files.stat(name, false); err != nil {
			if force {
				return nil
			}
			return err
		}
		return c.process.files.remove(name, strings.ContainsAny(given, "rR"))
	})
}

// sleep takes seconds, as POSIX has it, or a duration with its unit.
func sleep(ctx context.Context, c *call) error {
	if len(c.argv) != 2 {
		return fmt.Errorf("one duration is needed")
	}
	text := c.argv[1]
	if strings.Trim(text, "0123456789.") == "" {
		text += "s"
	}
	duration, err := time.ParseDuration(text)
	if text == "infinity" {
		duration, err = 1<<63-1, nil
	}
	if err != nil || duration < 0 {
		return fmt.Errorf("%q is no duration", c.argv[1])
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func touch(_ context.Context, c *call) error {
	return c.forEach(c.argv[1:], c.process.files.touch)
}

// sh starts a shell in this one, with what this one exports.
func sh(ctx context.Context, c *call) error {
	inner := *c.process
	inner.depth++
	inner.directory, inner.stdout, inner.stderr = c.Dir, c.Stdout, c.Stderr
	inner.stdin, _ = c.Stdin.(*os.File)
	inner.environment = c.exported()
	if code := inner.shell(ctx, c.argv[1:]); code != 0 {
		return interp.ExitStatus(code)
	}
	return nil
}
