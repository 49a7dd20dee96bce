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

// commandCall is one call of a simulated command.
type commandCall struct {
	interp.HandlerContext
	process  *process
	flags    string   // the letters of its options
	operands []string // the rest
}

// simulatedCommand is a command that containers have. letters are its options.
type simulatedCommand struct {
	run     func(context.Context, *commandCall) error
	letters string
}

var simulatedCommands = map[string]simulatedCommand{
	"cat": {run: runCat},
	"cd":  {run: runCd},
	"date": {run: func(_ context.Context, c *commandCall) error {
		return c.printLines(time.Now().UTC().Format(time.UnixDate))
	}},
	"env": {run: func(_ context.Context, c *commandCall) error { return c.printLines(c.exportedVariables()...) }},
	"help": {run: func(_ context.Context, c *commandCall) error {
		return c.printLines(strings.TrimSuffix(helpText, "\n"))
	}},
	"hostname": {run: func(_ context.Context, c *commandCall) error { return c.printLines(c.process.hostname) }},
	"ls":       {run: runLs, letters: "1aAl"},
	"mkdir": {
		run:     func(_ context.Context, c *commandCall) error { return c.forEachFile(c.process.files.mkdirAll) },
		letters: "p",
	},
	"pwd":   {run: func(_ context.Context, c *commandCall) error { return c.printLines(c.Dir) }},
	"rm":    {run: runRm, letters: "rRf"},
	"sleep": {run: runSleep},
	"touch": {run: func(_ context.Context, c *commandCall) error {
		return c.forEachFile(c.process.files.touchFile)
	}},
}

// shellNames are names of the same shell.
var shellNames = []string{"sh", "ash", "bash", "dash"}

// runCommand runs a command that is not a builtin of the interpreter.
func (p *process) runCommand(ctx context.Context, argv []string) error {
	c := &commandCall{HandlerContext: interp.HandlerCtx(ctx), process: p, operands: argv[1:]}
	name := path.Base(argv[0])
	found, known := simulatedCommands[name]
	if slices.Contains(shellNames, name) {
		found, known = simulatedCommand{run: func(context.Context, *commandCall) error {
			return errors.New(noShellText)
		}}, true
	}
	if !known {
		_, _ = fmt.Fprintf(
			c.Stderr,
			"sh: %s: not found: this is a simulated container and its image is not run; help lists what works\n", name,
		)
		return interp.ExitStatus(exitCodeNotFound)
	}
	err := c.takeOptions(found.letters)
	if err == nil {
		err = found.run(ctx, c)
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

// takeOptions moves the options from the operands to the flags.
func (c *commandCall) takeOptions(letters string) error {
	for letters != "" && len(c.operands) > 0 && len(c.operands[0]) > 1 && c.operands[0][0] == '-' {
		option := c.operands[0]
		c.operands = c.operands[1:]
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

func (c *commandCall) absolutePath(name string) string {
	if path.IsAbs(name) {
		return name
	}
	return path.Join(c.Dir, name)
}

func (c *commandCall) printLines(lines ...string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintln(c.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// forEachFile calls do with the absolute path of each operand. As these commands do, it goes on
// after an error, and returns the first.
func (c *commandCall) forEachFile(do func(string) error) (first error) {
	if len(c.operands) == 0 {
		return fmt.Errorf("the name of a file is needed")
	}
	for _, name := range c.operands {
		if err := do(c.absolutePath(name)); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// exportedVariables returns the environment that a command is started with, sorted.
func (c *commandCall) exportedVariables() []string {
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

func runCat(_ context.Context, c *commandCall) error {
	if len(c.operands) == 0 && c.Stdin != nil {
		_, err := io.Copy(c.Stdout, c.Stdin)
		return err
	}
	return c.forEachFile(func(name string) error {
		file, err := c.process.files.openFile(name, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		_, err = io.Copy(c.Stdout, file)
		return err
	})
}

// runCd replaces the interpreter's cd, which would look for the real machine's directory.
func runCd(_ context.Context, c *commandCall) error {
	to := "/"
	if len(c.operands) > 0 {
		to = path.Clean(c.absolutePath(c.operands[0]))
	}
	info, err := c.process.files.statFile(to, true)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", to)
	}
	if err == nil {
		c.process.runner.Dir = to
	}
	return err
}

func runLs(_ context.Context, c *commandCall) error {
	if len(c.operands) == 0 {
		c.operands = []string{c.Dir}
	}
	show := func(info fs.FileInfo, name string) error {
		if strings.Contains(c.flags, "l") {
			name = fmt.Sprintf("%s %8d %s %s", info.Mode(), info.Size(), info.ModTime().UTC().
				Format("Jan _2 15:04"), name)
		}
		return c.printLines(name)
	}
	return c.forEachFile(func(name string) error {
		info, err := c.process.files.statFile(name, true)
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
			info, err := c.process.files.statFile(path.Join(name, entry.Name()), false)
			if err != nil { // Of a volume that is not opened only the mount point is there.
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

func runRm(_ context.Context, c *commandCall) error {
	force := strings.Contains(c.flags, "f")
	if force && len(c.operands) == 0 {
		return nil
	}
	return c.forEachFile(func(name string) error {
		if _, err := c.process.files.statFile(name, false); err != nil && force {
			return nil
		} else if err != nil {
			return err
		}
		return c.process.files.removeFile(name, strings.ContainsAny(c.flags, "rR"))
	})
}

// runSleep takes seconds, as POSIX says, or a duration with its unit, or "infinity".
func runSleep(ctx context.Context, c *commandCall) error {
	text := strings.Join(c.operands, " ")
	if text == "infinity" {
		<-ctx.Done()
		return ctx.Err()
	}
	if strings.Trim(text, "0123456789.") == "" {
		text += "s"
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is no duration", strings.Join(c.operands, " "))
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
