package doctor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/process"
)

// files are the contents of a machine's files, by path.
type files map[string]string

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// healthyMachine is a machine for which every finding is OK, with its files and its environment.
func healthyMachine() (*Machine, files, map[string]string) {
	content := files{
		"/proc/sys/kernel/osrelease":              "6.1.0-13-amd64\n",
		"/proc/meminfo":                           "MemTotal: 16000000 kB\nMemAvailable:    8000000 kB\n",
		"/proc/self/cgroup":                       "0::/user.slice/me\n",
		"/proc/sys/fs/inotify/max_user_instances": "1024\n",
		"/proc/sys/fs/inotify/max_user_watches":   "524288\n",
	}
	env := map[string]string{}
	m := &Machine{
		OS: "linux", Arch: "amd64", UID: 1000, Cluster: "embedded", Home: "/home/me/labs",
		Bin: "/src/bin", Kube: "/src/bin/kube", Built: noon.Add(-time.Hour),
		Now:    func() time.Time { return noon },
		Getenv: func(name string) string { return env[name] },
		Read: func(file string) ([]byte, error) {
			if text, ok := content[file]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: file, Err: fs.ErrNotExist}
		},
		FreeSpace:    func() (uint64, error) { return 20 << 30, nil },
		CheckHome:    func() error { return nil },
		Listen:       func(string, string) error { return nil },
		Listeners:    listeners(0),
		Holder:       func(l Listener) string { return fmt.Sprintf("user %d", l.UID) },
		Limit:        func(int) (uint64, error) { return 1 << 20, nil },
		InotifyInUse: func() (uint64, error) { return 7, nil },
		Leftovers:    func() ([]process.Found, error) { return nil, nil },
		Engine:       func(context.Context) (string, error) { return "docker runs", nil },
	}
	return m, content, env
}

func TestHealthyMachine(t *testing.T) {
	m, _, _ := healthyMachine()
	findings := Examine(t.Context(), m)
	assert.Zero(t, Problems(findings))
	assert.Len(t, findings, len(checks))
	for i, f := range findings {
		assert.Equal(t, checks[i].name, f.Check)
		assert.Equal(t, OK, f.Level, "%+v", f)
		assert.NotEmpty(t, f.Seen)
		assert.Empty(t, f.Fix)
	}
}

// listeners are sockets of one user, with inodes counted from 77.
func listeners(uid int, addresses ...string) func() ([]Listener, error) {
	var all []Listener
	for i, address := range addresses {
		all = append(all, Listener{netip.MustParseAddrPort(address), uid, uint64(77 + i)})
	}
	return func() ([]Listener, error) { return all, nil }
}

var update = flag.Bool("update", false, "write testdata anew")

// What is found, beside what is found on a healthy machine too, is that of testdata.
func TestFindings(t *testing.T) {
	limitOf := func(resource int, n uint64) func(int) (uint64, error) {
		return func(asked int) (uint64, error) {
			if asked == resource {
				return n, nil
			}
			return 1 << 63, nil
		}
	}
	type machine struct {
		*Machine
		files
		env map[string]string
	}
	m, _, _ := healthyMachine()
	healthy := Examine(t.Context(), m)
	told := map[string]string{}
	for name, spoil := range map[string]func(machine){
		"another system":   func(m machine) { m.OS = "darwin" },
		"an old kernel":    func(m machine) { m.files["/proc/sys/kernel/osrelease"] = "4.18.0-553.el8" },
		"a kernel unknown": func(m machine) { delete(m.files, "/proc/sys/kernel/osrelease") },
		"clock of 1970": func(m machine) {
			m.Now = func() time.Time { return time.Unix(0, 0).UTC() }
		},
		"programs missing": func(m machine) { m.Missing = []string{"/src/bin/ccm"} },
		"little memory":    func(m machine) { m.files["/proc/meminfo"] = "MemAvailable:    512000 kB\n" },
		"a container's memory": func(m machine) {
			m.files["/sys/fs/cgroup/user.slice/memory.max"], m.files["/sys/fs/cgroup/user.slice/memory.current"] = "1073741824\n", "536870912\n"
			m.files["/sys/fs/cgroup/user.slice/me/memory.max"], m.files["/sys/fs/cgroup/user.slice/me/memory.current"] = "max\n", "0\n"
			m.files["/sys/fs/cgroup/user.slice/memory.stat"] = "anon 1\ninactive_file 104857600\nactive_file 7\n"
		},
		"a full disk":    func(m machine) { m.FreeSpace = func() (uint64, error) { return 1 << 20, nil } },
		"a disk unknown": func(m machine) { m.FreeSpace = func() (uint64, error) { return 0, unix.EIO } },
		"a home not mine": func(m machine) {
			m.CheckHome = func() error { return errors.New("/tmp/x belongs to eve") }
		},
		"few files":           func(m machine) { m.Limit = limitOf(unix.RLIMIT_NOFILE, 256) },
		"files unlimited":     func(m machine) { m.Limit = limitOf(unix.RLIMIT_NOFILE, unix.RLIM_INFINITY) },
		"few processes":       func(m machine) { m.Limit = limitOf(unix.RLIMIT_NPROC, 100) },
		"which bind not root": func(m machine) { m.UID, m.Limit = 0, limitOf(unix.RLIMIT_NPROC, 100) },
		"a container's pids": func(m machine) {
			m.files["/sys/fs/cgroup/pids.max"], m.files["/sys/fs/cgroup/pids.current"] = "256\n", "200\n"
		},
		"few watches":        func(m machine) { m.files["/proc/sys/fs/inotify/max_user_watches"] = "64" },
		"inotify by default": func(m machine) { m.files["/proc/sys/fs/inotify/max_user_instances"] = "128" },
		"inotify used up": func(m machine) {
			m.InotifyInUse = func() (uint64, error) { return 1022, nil }
		},
		"no loopback": func(m machine) {
			m.Listen = func(_, address string) error {
				if strings.HasPrefix(address, "127.0.0.1") {
					return nil
				}
				return fmt.Errorf("listen %s: cannot assign requested address", address)
			}
		},
		"no UDP": func(m machine) {
			m.Listen = func(network, _ string) error {
				if network == "udp4" {
					return unix.EPERM
				}
				return nil
			}
		},
		"a port held": func(m machine) {
			m.Listeners = listeners(33, "0.0.0.0:6443", "127.0.0.1:10250")
			m.Holder = func(l Listener) string { return fmt.Sprintf("nginx (pid 12) of %d", l.Inode) }
		},
		"a real kube-proxy's health": func(m machine) {
			m.Listeners = listeners(0, "0.0.0.0:10256")
		},
		"a real kubelet's, on IPv6": func(m machine) {
			m.Listeners = listeners(0, "[::]:10250")
		},
		"all locks held": func(m machine) {
			m.Listeners = listeners(0, "0.0.0.0:8469", "0.0.0.0:18469", "0.0.0.0:28469")
		},
		"leftovers": func(m machine) {
			m.Leftovers = func() ([]process.Found, error) {
				return []process.Found{{Lab: "/gone/x", Process: &process.Process{Component: "etcd", PID: 7}}}, nil
			}
		},
		"processes unknown": func(m machine) {
			m.Leftovers = func() ([]process.Found, error) { return nil, unix.EPERM }
		},
		"a proxy": func(m machine) {
			m.env["http_proxy"], m.env["NO_PROXY"] = "http://p:3128", "localhost,127.0.0.1,10.0.0.0/8"
		},
		"a proxy, but not here": func(m machine) {
			m.env["all_proxy"], m.env["no_proxy"] = "http://p:3128", "localhost, 127.0.0.0/8"
		},
		"a proxy for nothing": func(m machine) {
			m.env["https_proxy"], m.env["NO_PROXY"] = "http://p:3128", "*"
		},
		"one that curl ignores": func(m machine) { m.env["HTTP_PROXY"] = "http://p:3128" },
		"no engine": func(m machine) {
			m.Engine = func(context.Context) (string, error) { return "", errors.New("none") }
		},
		"engines of no use": func(m machine) {
			m.Engine = func(context.Context) (string, error) {
				return "", errors.New(
					"docker does not answer; start it; or: embedded\npodman runs rootless; run it as root; or: embedded",
				)
			}
		},
		"no engine for kind": func(m machine) {
			m.Cluster, m.Engine = "kind", func(context.Context) (string, error) { return "", errors.New("none") }
		},
	} {
		m, content, env := healthyMachine()
		spoil(machine{m, content, env})
		told[name] = ""
		for _, f := range Examine(t.Context(), m) {
			if !slices.Contains(healthy, f) {
				told[name] += fmt.Sprintf("%s: %s: %s\n", f.Check, f.Level, f.Seen)
				for line := range strings.Lines(f.Fix) {
					told[name] += "  fix: " + strings.TrimSuffix(line, "\n") + "\n"
				}
			}
		}
	}
	text := ""
	for _, name := range slices.Sorted(maps.Keys(told)) {
		text += "== " + name + "\n" + told[name]
	}
	const golden = "testdata/findings.golden"
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(text), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), text, "after a change that is meant: go test ./lab/doctor -update")
}

// A container engine that hangs is given up.
func TestHangingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := healthyMachine()
		m.Engine = func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		began := time.Now()
		findings := Examine(t.Context(), m)
		assert.Equal(t, engineBound, time.Since(began))
		last := findings[len(findings)-1]
		assert.Equal(t, Finding{Check: "kind", Level: Info, Seen: "could not be checked: no answer within 1.8s"}, last)
	})
}

// On the real machine every check has a finding, and none panics.
func TestThisMachine(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for _, f := range Examine(t.Context(), ThisMachine("embedded")) {
		assert.NotEmpty(t, f.Check)
		assert.NotEmpty(t, f.Seen, f.Check)
		if f.Level == Fix {
			assert.NotEmpty(t, f.Fix, f.Check)
		}
	}
}

func TestInotifyOfManyLabs(t *testing.T) {
	m, content, _ := healthyMachine()
	content["/proc/sys/fs/inotify/max_user_instances"] = "128\n"
	require.NoError(t, m.CheckInotify(40), "with 7 in use, by default")
	err := m.CheckInotify(41)
	require.ErrorContains(t, err, "41 labs take 123 inotify instances, and 7 of this user's 128 are in use")
	assert.ErrorContains(t, err, "sudo sysctl fs.inotify.max_user_instances=256")
	delete(content, "/proc/sys/fs/inotify/max_user_instances")
	assert.NoError(t, m.CheckInotify(1000), "nothing is refused where nothing is known")
}

// The holder of a port is found in the kernel's tables.
func TestPortHolder(t *testing.T) {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	all, err := ThisMachine("embedded").Listeners()
	require.NoError(t, err)
	found := 0
	for _, one := range all {
		if one.Address.Port() == uint16(l.Addr().(*net.TCPAddr).Port) && one.Address.Addr().IsUnspecified() {
			found++
			assert.Equal(t, os.Geteuid(), one.UID)
			assert.Contains(t, socketHolder(one), fmt.Sprintf("(pid %d)", os.Getpid()))
		}
	}
	assert.Equal(t, 1, found)
	assert.Equal(t, "user 4711", socketHolder(Listener{UID: 4711}), "a socket that nobody has")
}
