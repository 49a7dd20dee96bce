package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
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
			findings, problems := diagnose(), 0
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

func diagnose() []finding {
	return []finding{
		system(), loopback(), memory(), openFiles(), folder(), tool("go", "install Go 1.26 or newer: it builds everything"),
		tool("gcc", "install gcc: the cloud's database (SQLite) is C"), programs(), leftovers(),
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
	bin, err := embedded.FindBinaries("")
	if err != nil {
		return finding{Check: "programs", Seen: err.Error(), Fix: "make build"}
	}
	if missing := bin.Missing(); len(missing) > 0 {
		return finding{Check: "programs", Seen: "missing: " + strings.Join(missing, ", "), Fix: "make build"}
	}
	return finding{Check: "programs", Seen: "all in " + bin.Dir + " and " + bin.Kube}
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
