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
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
)

const helpText = `This is a simulated container. It has no processes and its image is not run;
these commands are the simulation's own. They see the container's environment and
its volumes, besides an empty file system that goes with the container.

  cat, date, echo, env, false, hostname, ls, mkdir, pwd, rm, sleep, test, touch,
  true, help
  sh -c "…"  && || ; if while for case, $VARIABLE, and > >> < with files; no $(…), no
             pipes, no wildcards and nothing to type in
  exit N     as the command of kubectl exec (not in sh): the container itself ends
             with that code
`

// call is one command that is being executed.
type call struct {
	interp.HandlerContext
	process *process
	flags   string   // the letters of its options
	operand []string // the rest
}

// command has options if it has letters for them.
type command struct {
	do      func(context.Context, *call) error
	letters string
}

var commands = map[string]command{
	"cat":      {do: cat},
	"cd":       {do: cd},
	"date":     {do: func(_ context.Context, c *call) error { return c.print(time.Now().UTC().Format(time.UnixDate)) }},
	"env":      {do: func(_ context.Context, c *call) error { return c.print(c.exported()...) }},
	"help":     {do: func(_ context.Context, c *call) error { return c.print(strings.TrimSuffix(helpText, "\n")) }},
	"hostname": {do: func(_ context.Context, c *call) error { return c.print(c.process.hostname) }},
	"ls":       {do: ls, letters: "1aAl"},
	"mkdir":    {do: func(_ context.Context, c *call) error { return c.forEach(c.process.files.mkdirAll) }, letters: "p"},
	"pwd":      {do: func(_ context.Context, c *call) error { return c.print(c.Dir) }},
	"rm":       {do: rm, letters: "rRf"},
	"sleep":    {do: sleep},
	"touch":    {do: func(_ context.Context, c *call) error { return c.forEach(c.process.files.touch) }},
}

// shells are all the same one.
var shells = []string{"sh", "ash", "bash", "dash"}

// command executes what is no builtin of the interpreter's.
func (p *process) command(ctx context.Context, argv []string) error {
	c := &call{HandlerContext: interp.HandlerCtx(ctx), process: p, operand: argv[1:]}
	name := path.Base(argv[0])
	found, known := commands[name]
	if slices.Contains(shells, name) {
		found, known = command{do: func(context.Context, *call) error { return errors.New(onlyScripts) }}, true
	}
	if !known {
		_, _ = fmt.Fprintf(c.Stderr, "sh: %s: not found: this is a simulated container and its image is not run; help lists what works\n", name)
		return interp.ExitStatus(exitNotFound)
	}
	err := c.takeOptions(found.letters)
	if err == nil {
		err = found.do(ctx, c)
	}
	var exited interp.ExitStatus
	if err == nil || errors.As(err, &exited) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_, _ = fmt.Fprintf(c.Stderr, "%s: %v\n", name, err)
	return interp.ExitStatus(1)
}

func (c *call) takeOptions(letters string) error {
	for letters != "" && len(c.operand) > 0 && len(c.operand[0]) > 1 && c.operand[0][0] == '-' {
		option := c.operand[0]
		c.operand = c.operand[1:]
		if option == "--" {
			break
		}
		if strings.Trim(option[1:], letters) != "" {
			return fmt.Errorf("option %s is not known to this simulation; -%s are", option, letters)
		}
		c.flags += option[1:]
	}
	return nil
}

func (c *call) path(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(c.Dir, name)
}

func (c *call) print(lines ...string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(c.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// forEach goes on after an error, as these commands do, and returns the first.
func (c *call) forEach(do func(string) error) (first error) {
	if len(c.operand) == 0 {
		return fmt.Errorf("the name of a file is needed")
	}
	for _, name := range c.operand {
		if err := do(c.path(name)); err != nil && first == nil {
			first = err
		}
	}
	return first
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

func cat(_ context.Context, c *call) error {
	if len(c.operand) == 0 && c.Stdin != nil {
		_, err := io.Copy(c.Stdout, c.Stdin)
		return err
	}
	return c.forEach(func(name string) error {
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
	if len(c.operand) > 0 {
		to = path.Clean(c.path(c.operand[0]))
	}
	info, err := c.process.files.stat(to, true)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", to)
	}
	if err == nil {
		c.process.runner.Dir = to
	}
	return err
}

func ls(_ context.Context, c *call) error {
	if len(c.operand) == 0 {
		c.operand = []string{c.Dir}
	}
	show := func(info fs.FileInfo, name string) error {
		if strings.Contains(c.flags, "l") {
			name = fmt.Sprintf("%s %8d %s %s", info.Mode(), info.Size(), info.ModTime().UTC().Format("Jan _2 15:04"), name)
		}
		return c.print(name)
	}
	return c.forEach(func(name string) error {
		info, err := c.process.files.stat(name, true)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return show(info, name)
		}
		entries, err := c.process.files.readDir(name)
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), ".") && !strings.ContainsAny(c.flags, "aA") {
				continue
			}
			info, err := c.process.files.stat(path.Join(name, entry.Name()), false)
			if err != nil { // a volume that is not opened: its place is there
				info, err = entry.Info()
			}
			if err == nil {
				err = show(info, entry.Name())
			}
			if err != nil {
				return err
			}
		}
		return err
	})
}

func rm(_ context.Context, c *call) error {
	force := strings.Contains(c.flags, "f")
	if force && len(c.operand) == 0 {
		return nil
	}
	return c.forEach(func(name string) error {
		if _, err := c.process.files.stat(name, false); err != nil && force {
			return nil
		} else if err != nil {
			return err
		}
		return c.process.files.remove(name, strings.ContainsAny(c.flags, "rR"))
	})
}

// sleep takes seconds, as POSIX has it, a duration with its unit, or infinity.
func sleep(ctx context.Context, c *call) error {
	text := strings.Join(c.operand, " ")
	if text == "infinity" {
		<-ctx.Done()
		return ctx.Err()
	}
	if strings.Trim(text, "0123456789.") == "" {
		text += "s"
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is no duration", strings.Join(c.operand, " "))
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
