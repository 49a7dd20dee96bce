package lessons

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// interruptGracePeriod is how long the processes of a script may go on after they were
// interrupted.
const interruptGracePeriod = 5 * time.Second

// runScript runs a script in bash with the environment of the lesson's lab. $ROLE is
// the name of the lab of that role. In lessons about the learner's own CCM, $MY_CCM is
// its folder and $SOLUTION one with this step done. say may be nil.
func (s *Seat) runScript(ctx context.Context, l *Lesson, script string, say func(line string)) error {
	env, err := s.scriptEnviron(l)
	if err != nil {
		return err
	}
	if l.Step > 0 {
		solution, err := os.MkdirTemp("", "ccm")
		if err != nil {
			return remedy.With(err)
		}
		defer func() { _ = os.RemoveAll(solution) }()
		files, err := sourcesUpToStep(l.Step)
		if err == nil {
			err = writeFiles(solution, files)
		}
		if err != nil {
			return err
		}
		env = append(env, "SOLUTION="+solution)
	}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Env, cmd.WaitDelay = env, interruptGracePeriod
	interruptAll(cmd)
	var last bytes.Buffer
	lines := &process.LineWriter{Tell: func(line string) error {
		fmt.Fprintln(&last, line)
		if say != nil {
			say(line)
		}
		return nil
	}}
	cmd.Stdout, cmd.Stderr = lines, lines
	err = errors.Join(cmd.Run(), lines.Flush())
	if err != nil {
		return fmt.Errorf("%w\n%s", cmp.Or(context.Cause(ctx), err), process.LastLines(last.String(), 20))
	}
	return nil
}

// interruptAll makes the end of the command's context interrupt its whole process
// group: a `lab ccm start` that went on would keep the lab locked, which is to be taken
// down.
func interruptAll(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
}

func (s *Seat) scriptEnviron(l *Lesson) ([]string, error) {
	env := os.Environ()
	for role, name := range s.labNames(l) {
		if role != "" {
			env = append(env, strings.ToUpper(role)+"="+name)
		}
	}
	p, err := s.Progress()
	if err != nil {
		return nil, err
	}
	if p.Folder != "" {
		env = append(env, "MY_CCM="+p.Folder)
	}
	opened, err := lab.Open(s.name)
	if err != nil {
		return nil, err
	}
	tools, err := s.Tools()
	return lab.Environ(env, append(opened.Env(), tools...)), err
}
