package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/cluster/kind"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// finding is what one check saw. A fix makes it a problem.
type finding struct {
	Check string `json:"check"`
	Seen  string `json:"seen"`
	Fix   string `json:"fix,omitempty"`
}

// needMemoryMB is what a lab of three nodes takes, with some room.
const needMemoryMB = 1500

// needFiles is what etcd and the API server want of open files.
const needFiles = 1024

func newDoctor(_ *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, with a fix for each finding",
		Long:  "doctor looks at what the lab needs of this machine. It exits with 1 when something must be mended.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings, problems := diagnose(cmd.Context()), 0
			for _, f := range findings {
				if f.Fix != "" {
					problems++
				}
			}
			if format := cmd.Flag("output").Value.String(); format != "table" {
				if err := printAs(cmd.OutOrStdout(), format, findings); err != nil {
					return err
				}
			} else {
				for _, f := range findings {
					mark := "ok "
					if f.Fix != "" {
						mark = "FIX"
					}
					_, _ = fmt.Fprintf(cmd.OutOrStdout(), "%s  %-12s %s\n", mark, f.Check, f.Seen)
					if f.Fix != "" {
						_, _ = fmt.Fprintf(cmd.OutOrStdout(), "     %-12s → %s\n", "", f.Fix)
					}
				}
			}
			if problems > 0 {
				return silentError{errors.New("problems found")}
			}
			return nil
		},
	}
	addOutput(cmd, "table", "json", "yaml")
	return cmd
}

func diagnose(ctx context.Context) []finding {
	return []finding{
		system(), loopback(), memory(), openFiles(), folder(), tool("go", "install Go 1.26 or newer: it builds everything"),
		tool("gcc", "install gcc: the cloud's database (SQLite) is C"), programs(), leftovers(), containers(ctx), inotify(),
	}
}

func system() finding {
	f := finding{Check: "system", Seen: runtime.GOOS + "/" + runtime.GOARCH}
	if runtime.GOOS != "linux" {
		f.Fix = "the embedded cluster needs Linux: use a virtual machine or a container"
	}
	return f
}

// loopback: on Linux all of 127/8 is there without being set up.
func loopback() finding {
	f := finding{Check: "loopback", Seen: "addresses in 127.0.0.0/8 can be listened on"}
	l, err := net.Listen("tcp4", "127.99.255.254:0")
	if err != nil {
		f.Seen, f.Fix = err.Error(), "bring up the loopback interface with 127.0.0.1/8 on it: ip address add 127.0.0.1/8 dev lo; ip link set lo up"
		return f
	}
	_ = l.Close()
	return f
}

func memory() finding {
	f := finding{Check: "memory"}
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		f.Seen = err.Error()
		return f
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		var kb int
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kb); n == 1 {
			f.Seen = fmt.Sprintf("%d MB available", kb/1024)
			if kb/1024 < needMemoryMB {
				f.Fix = fmt.Sprintf("a lab of three nodes wants %d MB: end something, or use fewer nodes", needMemoryMB)
			}
		}
	}
	return f
}

func openFiles() finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return finding{Check: "open files", Seen: err.Error()}
	}
	f := finding{Check: "open files", Seen: fmt.Sprintf("up to %d per process", limit.Max)}
	if limit.Max < needFiles {
		f.Fix = fmt.Sprintf("raise the limit to %d or more: ulimit -n, or /etc/security/limits.conf", needFiles)
	}
	return f
}

func folder() finding {
	root, err := state.Root()
	f := finding{Check: "folder", Seen: "labs are kept in " + root}
	// The nearest folder that exists is where the rest would be made.
	dir := root
	for err == nil {
		if _, serr := os.Stat(dir); serr == nil || dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	if err == nil {
		err = unix.Access(dir, unix.W_OK)
	}
	if err != nil {
		f.Seen, f.Fix = fmt.Sprintf("%s: %v", dir, err), "set CCMLAB_HOME to a folder you may write"
	}
	return f
}

func tool(name, fix string) finding {
	path, err := exec.LookPath(name)
	if err != nil {
		return finding{Check: name, Seen: "not in PATH", Fix: fix}
	}
	return finding{Check: name, Seen: path}
}

func programs() finding {
	bin, err := local.FindBinaries("", "")
	if err != nil {
		return finding{Check: "programs", Seen: err.Error(), Fix: "make build"}
	}
	if missing := bin.Missing(embedded.OwnPrograms, embedded.KubePrograms); len(missing) > 0 {
		return finding{Check: "programs", Seen: "missing: " + strings.Join(missing, ", "), Fix: "make build"}
	}
	return finding{Check: "programs", Seen: "all in " + bin.Dir + " and " + bin.Kube}
}

// containers: without an engine there is still the embedded cluster, so that
// this is no problem to mend.
func containers(ctx context.Context) finding {
	k, err := kind.Choose(ctx, "", "", binDir())
	if err != nil {
		return finding{Check: "kind", Seen: "not to be had: " + err.Error()}
	}
	return finding{Check: "kind", Seen: fmt.Sprintf("%s runs; nodes would be %s", k.Engine, k.Image)}
}

func binDir() string {
	bin, err := local.FindBinaries("", "")
	if err != nil {
		return ""
	}
	return bin.Dir
}

// fewInstances is the kernel's default of inotify instances per user, which
// two kind clusters use up.
const fewInstances = 128

func inotify() finding {
	f := finding{Check: "inotify"}
	data, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	if err != nil {
		f.Seen = err.Error()
		return f
	}
	f.Seen = strings.TrimSpace(string(data)) + " instances per user"
	if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && n <= fewInstances {
		f.Seen += "; a third kind cluster beside two others would want more (sudo sysctl fs.inotify.max_user_instances=1024)"
	}
	return f
}

// leftovers are processes whose lab's folder is gone.
func leftovers() finding {
	found, err := process.All()
	if err != nil {
		return finding{Check: "leftovers", Seen: err.Error()}
	}
	var names []string
	labs := map[string]int{}
	for _, p := range found {
		if _, err := os.Stat(p.Lab); err != nil {
			names = append(names, fmt.Sprintf("%s (pid %d, lab %s)", p.Component, p.PID, filepath.Base(p.Lab)))
		} else {
			labs[filepath.Base(p.Lab)]++
		}
	}
	if len(names) > 0 {
		return finding{Check: "leftovers", Seen: strings.Join(names, ", "), Fix: "lab down --name LAB ends them"}
	}
	return finding{Check: "leftovers", Seen: fmt.Sprintf("none; %d labs have processes", len(labs))}
}
