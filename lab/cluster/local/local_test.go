package local

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/pki"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

func TestMissingBinaries(t *testing.T) {
	dir := t.TempDir()
	own, kube := []string{"fakecloud", "ccm"}, []string{"etcd", "kubectl"}
	bin := cluster.Binaries{Dir: dir, Kube: dir}
	assert.Len(t, bin.Missing(own, kube), len(own)+len(kube))
	require.NoError(t, os.WriteFile(dir+"/etcd", nil, 0o755))
	assert.NotContains(t, bin.Missing(own, kube), dir+"/etcd")
	require.NoError(t, os.WriteFile(dir+"/ccm", nil, 0o644))
	assert.Contains(t, bin.Missing(own, kube), dir+"/ccm", "no program, as nobody may run it")
	err := bin.Need(own, kube)
	assert.ErrorContains(t, err, "`make build` builds them")
	assert.ErrorContains(t, err, dir+"/kubectl;")
	assert.ErrorContains(t, err, dir+"/ccm (there, but it may not be executed: chmod +x)")
	assert.NoError(t, bin.Need(nil, []string{"etcd"}))
}

// Upstream's programs are where LAB_KUBE_BIN says, else where the lab has them
// on record, else beside our own.
func TestFindBinaries(t *testing.T) {
	t.Setenv("LAB_KUBE_BIN", "")
	bin, err := cluster.FindBinaries("/bundle", "")
	require.NoError(t, err)
	assert.Equal(t, cluster.Binaries{Dir: "/bundle", Kube: "/bundle/kube"}, bin)
	assert.Equal(t, "/bundle/fakecloud", bin.Program("fakecloud"))
	assert.Equal(t, "/bundle/kube/etcd", bin.Program("etcd"))
	bin, err = cluster.FindBinaries("/bundle", "/recorded")
	require.NoError(t, err)
	assert.Equal(t, "/recorded", bin.Kube)
	t.Setenv("LAB_KUBE_BIN", "/elsewhere")
	bin, err = cluster.FindBinaries("/bundle", "/recorded")
	require.NoError(t, err)
	assert.Equal(t, "/elsewhere", bin.Kube)
}

// The slot of a lab that is stopped is left for it, though nobody listens there.
func TestClaimLeavesKeptSlots(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	first, err := ClaimSlot()
	require.NoError(t, err)
	stopped, err := state.Create("stopped")
	require.NoError(t, err)
	defer stopped.Unlock()
	stopped.Slot, stopped.Ports = first.Number, first.Ports
	require.NoError(t, stopped.Save())
	damaged, err := state.Create("damaged")
	require.NoError(t, err)
	defer damaged.Unlock()
	require.NoError(t, atomicfile.Write(damaged.Path("lab.json"), []byte("{")))
	require.NoError(t, first.Lock.Close())

	kept, err := keptSlots()
	require.NoError(t, err)
	assert.Equal(t, []int{first.Number}, kept)
	site := NewSite(stopped, cluster.Binaries{})
	other, err := state.Create("other")
	require.NoError(t, err)
	defer other.Unlock()
	hold, err := NewSite(other, cluster.Binaries{}).Claim(t.Context())
	require.NoError(t, err)
	defer func() { _ = hold.Close() }()
	assert.NotEqual(t, stopped.Slot, other.Slot)
	assert.NotZero(t, other.Slot)
	ended, err := site.Pause(t.Context())
	require.NoError(t, err)
	assert.Zero(t, ended, "nothing of it runs")
}

// There is no slot when all are kept, and the reason says what to do.
func TestAllSlotsAreKept(t *testing.T) {
	var all []int
	for x := firstSlot; x <= lastSlot; x++ {
		all = append(all, x)
	}
	_, err := ClaimSlot(all...)
	assert.ErrorContains(t, err, "are taken or kept; `lab list` says which labs there are")
}

const bound = 20 * time.Second

func TestKeeper(t *testing.T) {
	host := process.Host{Lab: t.TempDir()}
	running := func() (*process.Process, error) {
		all, err := host.Running()
		return all["ccm"], err
	}
	k := Keeper{
		Mark: filepath.Join(host.Lab, "ccm.wanted"), Running: running, Log: slog.New(slog.DiscardHandler),
		Delay: restartDelay,
		Start: func() (*process.Process, error) {
			return host.Start(process.Spec{
				Component: "ccm", Path: "/bin/sleep", Args: []string{"1000"},
				LogFile: filepath.Join(host.Lab, "ccm.log"),
			})
		},
	}
	pid := func() int {
		if p, err := running(); err == nil && p != nil {
			return p.PID
		}
		return 0
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, bound, 10*time.Millisecond, what)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		if p, _ := running(); p != nil {
			assert.NoError(t, process.Stop(context.Background(), 0, p))
		}
	})

	require.NoError(t, os.WriteFile(k.Mark, nil, 0o600))
	until("it to start once wanted", func() bool { return pid() != 0 })
	first, err := running()
	require.NoError(t, err)
	require.NoError(t, first.Signal(syscall.SIGKILL))
	until("it to start again", func() bool { p := pid(); return p != 0 && p != first.PID })

	cancel()
	require.NoError(t, <-done)
	assert.NotZero(t, pid(), "an agent that ends leaves it running")

	k.Delay = time.Hour
	ctx, cancel = context.WithCancel(t.Context())
	go func() { done <- k.Run(ctx) }()
	second, err := running()
	require.NoError(t, err)
	require.NoError(t, process.Stop(t.Context(), 0, second))
	require.NoError(t, os.Remove(k.Mark))
	require.NoError(t, os.WriteFile(k.Mark, nil, 0o600))
	until("it to start without the delay, as somebody starts it anew", func() bool { return pid() != 0 })
	cancel()
	require.NoError(t, <-done)
}

func newSite(t *testing.T) Site {
	t.Helper()
	t.Setenv("CCMLAB_HOME", t.TempDir())
	lab, err := state.Create("lab")
	require.NoError(t, err)
	t.Cleanup(lab.Unlock)
	s := NewSite(lab, cluster.Binaries{})
	t.Cleanup(func() {
		_, err := s.Down(context.Background())
		assert.NoError(t, err)
	})
	return s
}

func (s Site) script(component, script string) process.Spec {
	return process.Spec{
		Component: component, Path: "/bin/sh", Args: []string{"-c", script}, LogFile: s.LogFile(component),
	}
}

// What was told to end before it was found ends while it is waited for, and is
// started anew; what is started and ends is an error.
func TestServe(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	needed, last := s.script("needed", "exec sleep 1000"), s.script("last", "exec sleep 1000")
	begun := map[string]*process.Process{}
	for _, spec := range []process.Spec{needed, last} {
		p, err := s.Host.Start(spec)
		require.NoError(t, err)
		begun[spec.Component] = p
	}
	for _, dying := range []string{"needed", "last"} {
		told := false
		err := s.Serve(ctx, "another to run", func(context.Context) error {
			if !told {
				told = true
				return errors.Join(errors.New("not yet"), begun[dying].Signal(syscall.SIGTERM))
			}
			running, err := s.Host.Running()
			if err != nil {
				return err
			}
			if p := running[dying]; p == nil || p.PID == begun[dying].PID {
				return errors.New("it is the one that was told to end")
			}
			return nil
		}, needed, last)
		require.NoError(t, err, dying)
	}

	err := s.Serve(
		ctx, "it to be ready", func(context.Context) error { return errors.New("never") }, needed,
		s.script("broken", "echo the reason; exit 3"),
	)
	require.ErrorContains(t, err, "broken ended at its start (exit status 3)")
	assert.ErrorContains(t, err, "the reason")
}

// The error says how a process ended, or what was waited for, and where the log is.
func TestAwaitErrors(t *testing.T) {
	for script, tc := range map[string]struct {
		bound time.Duration
		ready string
		want  []string
	}{
		"echo the reason; exit 3": {
			bound, "not yet", []string{"comp ended at its start (exit status 3)", "the reason", "comp.log"},
		},
		"echo still working; exec sleep 1000": {
			200 * time.Millisecond, "connection refused",
			[]string{"waited for it to answer", "gave up after 200ms", "connection refused", "comp.log"},
		},
	} {
		s := newSite(t)
		p, err := s.Host.Start(s.script("comp", script))
		require.NoError(t, err)
		gaveUp := fmt.Errorf("gave up after %s", tc.bound)
		ctx, cancel := context.WithTimeoutCause(t.Context(), tc.bound, gaveUp)
		err = Await(ctx, p, "it to answer", func(context.Context) error { return errors.New(tc.ready) })
		cancel()
		for _, want := range tc.want {
			assert.ErrorContains(t, err, want)
		}
	}
}

// A cloud that may not send to a machine that is there by now is ended, to be started anew.
func TestCloudWithoutATargetRangeIsEnded(t *testing.T) {
	s := newSite(t)
	// A program without children, which would have the component's mark, that waits whatever its arguments are.
	spec := s.script(ComponentCloud, "")
	spec.Path, spec.Args = "/usr/bin/tail", []string{"-f", "/dev/null", "--", targetRangeFlag + "10.0.0.1/32"}
	p, err := s.Host.Start(spec)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		running, err := s.Host.Running()
		return err == nil && running[ComponentCloud] != nil
	}, bound, time.Millisecond)
	require.NoError(t, s.stopOutdatedCloud(t.Context(), spec))
	assert.True(t, p.Alive())
	spec.Args = append(spec.Args, targetRangeFlag+"10.0.0.2/32")
	require.NoError(t, s.stopOutdatedCloud(t.Context(), spec))
	require.Eventually(t, func() bool { return !p.Alive() }, bound, time.Millisecond, "it has ended, and is reaped in a moment")
}

// While a lab's cloud is away, another user of the machine can listen on its port. Only who has the key that the lab's
// authority signed is sent a token.
func TestWhoTakesTheCloudsPortGetsNoToken(t *testing.T) {
	s := newSite(t)
	cloud := s.Cloud()
	ours, err := pki.LoadOrCreate(cloud.Dir, "ca")
	require.NoError(t, err)
	theirs, err := pki.LoadOrCreate(t.TempDir(), "ca")
	require.NoError(t, err)
	require.NoError(t, atomicfile.Write(cloud.TokenFile(cluster.CallerLab), []byte("secret")))
	for who, tc := range map[string]struct {
		authority *pki.Authority // nil speaks plain HTTP
		tokens    []string
	}{
		"the cloud":                  {ours, []string{"Bearer secret"}},
		"another without TLS":        {nil, nil},
		"another with a certificate": {theirs, nil},
	} {
		t.Run(who, func(t *testing.T) {
			var tokens []string
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				tokens = append(tokens, r.Header.Get("Authorization"))
				_, _ = w.Write([]byte(`{"items": []}`))
			}))
			start := server.Start
			if tc.authority != nil {
				pair, err := tc.authority.Ensure(t.TempDir(), "cloud", pki.Identity{Name: "cloud", Addresses: []string{s.Address()}})
				require.NoError(t, err)
				cert, err := tls.LoadX509KeyPair(pair.Cert, pair.Key)
				require.NoError(t, err)
				server.TLS, start = &tls.Config{Certificates: []tls.Certificate{cert}}, server.StartTLS
			}
			start()
			defer server.Close()
			s.Lab.Ports[PortCloud] = server.Listener.Addr().(*net.TCPAddr).Port
			caller, err := s.Cloud().Client(cluster.CallerLab)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // A read is tried again until then.
			defer cancel()
			_, err = caller.ListZones(ctx)
			assert.Equal(t, tc.tokens == nil, err != nil, "%v", err)
			assert.Equal(t, tc.tokens, tokens)
		})
	}
}
