// This file answers: how is a server started, watched and ended?

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// startTimeout bounds the time until a server is ready.
const startTimeout = 60 * time.Second

// process is a server that runs beside us. What it says is in a file: read
// through a pipe, every line of its log would cost the client time.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

func start(cmd *exec.Cmd, log string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // The process has its own.
	cmd.Stdout, cmd.Stderr = out, out
	p := &process{cmd: cmd, log: log, exited: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // It is killed in the end.
		close(p.exited)
	}()
	return p, nil
}

// kill ends it at once and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // It may have ended by itself.
	<-p.exited
}

// said waits for a line that matches and gives its first group.
func (p *process) said(ctx context.Context, line *regexp.Regexp) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		text, err := os.ReadFile(p.log)
		if err != nil {
			return "", err
		}
		if m := line.FindSubmatch(text); m != nil {
			return string(m[1]), nil
		}
		select {
		case <-p.exited:
			return "", fmt.Errorf("%s ended: %.2000s", filepath.Base(p.cmd.Path), text)
		case <-ctx.Done():
			return "", fmt.Errorf("%s is not ready: %w", filepath.Base(p.cmd.Path), ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// memory is what the process has resident now, and had at most, in bytes.
func (p *process) memory() (now, peak int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "kB" {
			continue
		}
		kb, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		switch f[0] {
		case "VmRSS:":
			now = kb << 10
		case "VmHWM:":
			peak = kb << 10
		}
	}
	return now, peak, nil
}

// cpu is the processor time that the process has had; 0 where Linux's /proc
// does not say.
func (p *process) cpu() time.Duration {
	return cpuOf(readOr(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)))
}

// ownCPU is the same of this process, the clients'.
func ownCPU() time.Duration { return cpuOf(readOr("/proc/self/stat")) }

// tick is the unit of times in /proc, on every machine that Go runs on.
const tick = 10 * time.Millisecond

// cpuOf adds user and system time. They are counted from the end of the
// program's name, which may hold anything.
func cpuOf(stat string) time.Duration {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(f) < 13 {
		return 0
	}
	user, err := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * tick
}

// busy is the processor time that everything on the machine has had, of
// /proc/stat: all but idle time and waiting for a disk. What a hypervisor gave
// to others is in it.
func busy(stat string) time.Duration {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0
	}
	total := 0
	for i, v := range f[1:9] {
		n, err := strconv.Atoi(v)
		if err != nil {
			return 0
		}
		if i != 3 && i != 4 {
			total += n
		}
	}
	return time.Duration(total) * tick
}

// cloud is a running `fakecloud serve`.
type cloud struct {
	*process
	address, token string
}

var readyLine = regexp.MustCompile(`(?m)^fakecloud is ready at http://(\S+);`)

// abundant is a rate that no client here reaches: the limiter counts, and
// refuses nothing.
const abundant = "1000000"

// serve starts the cloud on a data folder; listen with port 0 takes any.
func (b *bench) serve(listen string) (*process, error) {
	// A range of its own, so that neither a lab nor a second benchmark on this
	// machine has the same addresses.
	pool := fmt.Sprintf("127.%d.", 128+os.Getpid()%120)
	args := []string{
		"serve", "--listen", listen, "--data", filepath.Join(b.dir, "cloud.db"), "--token", "operator:admin=" + filepath.Join(b.dir, "token"),
		"--profile", "instant", "--retention", "0s", "--instance-cidr", pool + "0.0/17", "--load-balancer-cidr", pool + "128.0/17",
	}
	args = append(args, b.limits...)
	return start(exec.Command(b.binary, args...), filepath.Join(b.dir, "fakecloud.log"))
}

// limits are the flags that make the rate limiter run without refusing, if this
// binary has one.
func limits(ctx context.Context, binary string) ([]string, error) {
	help, err := exec.CommandContext(ctx, binary, "serve", "--help").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s serve --help: %w: %.500s", binary, err, help)
	}
	var flags []string
	for _, flag := range []string{"--rate-limit", "--rate-burst"} {
		if bytes.Contains(help, []byte(flag+" ")) {
			flags = append(flags, flag, abundant)
		}
	}
	return flags, nil
}

func (b *bench) startCloud(ctx context.Context) error {
	p, err := b.serve("127.0.0.1:0")
	if err != nil {
		return err
	}
	b.cloud.process = p
	if b.cloud.address, err = p.said(ctx, readyLine); err != nil {
		return err
	}
	token, err := os.ReadFile(filepath.Join(b.dir, "token"))
	b.cloud.token = strings.TrimSpace(string(token))
	return err
}

// restart kills the cloud at once and gives the time from the start of the next
// one to its first answer that it is ready.
func (b *bench) restart(ctx context.Context) (time.Duration, error) {
	b.cloud.kill()
	begin := time.Now()
	p, err := b.serve(b.cloud.address)
	if err != nil {
		return 0, err
	}
	b.cloud.process = p
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if b.ready(ctx) {
			return time.Since(begin), nil
		}
		select {
		case <-p.exited:
			text, _ := os.ReadFile(p.log)
			return 0, fmt.Errorf("the cloud ended: %.2000s", text)
		case <-ctx.Done():
			return 0, errors.Join(errors.New("the cloud does not get ready"), ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func (b *bench) ready(ctx context.Context) bool {
	c, err := dial(ctx, b.cloud.address)
	if err != nil {
		return false
	}
	defer c.close()
	status, _, err := c.do(b.get("/readyz"))
	return err == nil && status == 200
}
