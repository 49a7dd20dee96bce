package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const maxNodes = 100

func newUp(o *options) *cobra.Command {
	var (
		opts  lab.Options
		quiet bool
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the lab up, or complete one that is there",
		Long: `up starts the cloud, the cluster, three instances with a node each, a demo
behind a Service of type LoadBalancer, and the CCM, and waits for the first
answer through the load balancer. On a lab that is up it adds what is missing.`,
		Example: `  lab up --nodes 5 --profile realistic
  lab up --name second          # another lab beside the first
  lab up --without-ccm          # see what waits for a CCM`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Name = o.name
			if err := checkUp(opts, cmd.Flags().Changed("nodes")); err != nil {
				return err
			}
			format := cmd.Flag("output").Value.String()
			steps := ui.New(os.Stderr, quiet)
			l, err := lab.Up(cmd.Context(), opts, steps)
			if err != nil {
				return err
			}
			st, err := l.Status(cmd.Context())
			if err != nil {
				return err
			}
			if format != "table" {
				return printAs(cmd.OutOrStdout(), format, st)
			}
			if quiet {
				return nil
			}
			return closing(cmd, l, st, opts)
		},
	}
	cmd.Flags().IntVar(&opts.Nodes, "nodes", 0, fmt.Sprintf("number of instances to see to (default %d, or as before)", lab.DefaultNodes))
	cmd.Flags().StringVar(&opts.Profile, "profile", "", fmt.Sprintf("how long the cloud takes for things: instant, fast or realistic (default %s, or as before)", lab.DefaultProfile))
	cmd.Flags().BoolVar(&opts.WithoutCCM, "without-ccm", false, "leave the CCM out: nodes stay tainted, pods Pending")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print problems only")
	addOutput(cmd, "table", "json", "yaml")
	_ = cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions([]string{"instant", "fast", "realistic"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func checkUp(o lab.Options, nodesGiven bool) error {
	var errs []error
	if runtime.GOOS != "linux" {
		errs = append(errs, fmt.Errorf("the embedded cluster needs Linux, this is %s; use a virtual machine or a container", runtime.GOOS))
	}
	if _, err := state.Dir(o.Name); err != nil {
		errs = append(errs, usageError{err})
	}
	if nodesGiven && (o.Nodes < 1 || o.Nodes > maxNodes) {
		errs = append(errs, usagef("--nodes %d: want 1 to %d", o.Nodes, maxNodes))
	}
	switch o.Profile {
	case "", "instant", "fast", "realistic":
	default:
		errs = append(errs, usagef("--profile %q: want instant, fast or realistic", o.Profile))
	}
	return errors.Join(errs...)
}

// closing is the last screen: what to do now.
func closing(cmd *cobra.Command, l *lab.Lab, st *lab.Status, o lab.Options) error {
	w := cmd.OutOrStdout()
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	entries, err := l.Timeline().Read()
	if err != nil {
		return err
	}
	self := invocation()
	nameFlag := ""
	if o.Name != "lab" {
		nameFlag = " --name " + o.Name
	}
	p("\nTimeline (seconds since start)")
	printTimeline(w, entries)
	p("")
	for _, s := range st.Services {
		if s.Address != "" {
			p("  Try it        curl http://%s:%d/", s.Address, s.Port)
		}
	}
	p("  Your shell    eval \"$(%s env%s)\"      # KUBECONFIG, kubectl, fakecloud", self, nameFlag)
	if o.WithoutCCM {
		p("  The CCM       %s ccm start%s          # watch the taints lift", self, nameFlag)
	}
	p("  Watch         %s watch%s", self, nameFlag)
	p("  Break it      fakecloud instances stop node-%d      # then: start, terminate, create", l.State.Nodes)
	p("  Stop          %s down%s", self, nameFlag)
	return nil
}

// invocation is how the person called us, for commands to copy.
func invocation() string {
	self := os.Args[0]
	if found, err := exec.LookPath(filepath.Base(self)); err == nil && sameFile(found, self) {
		return filepath.Base(self)
	}
	return self
}

func sameFile(a, b string) bool {
	ia, err1 := os.Stat(a)
	ib, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(ia, ib)
}

func newDown(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop everything of the lab and delete its folder",
		Long: `down ends every process of the lab and deletes all that it kept. It also
clears away what a crash left. Where there is no lab it says so, and is content.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := state.Dir(o.name); err != nil {
				return usageError{err}
			}
			return ui.New(os.Stderr, false).Do("down", func(func(string)) (string, error) {
				n, err := lab.Down(cmd.Context(), o.name)
				if errors.Is(err, state.ErrNone) {
					return fmt.Sprintf("there is no lab %q; nothing to do", o.name), nil
				}
				return fmt.Sprintf("%d processes ended, folder deleted", n), err
			})
		},
	}
}

func newCCM(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ccm",
		Short: "Start, stop or restart the cloud controller manager",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	stop := func(cmd *cobra.Command, l *lab.Lab) error { return l.StopCCM(cmd.Context()) }
	start := func(cmd *cobra.Command, l *lab.Lab) error { return l.StartCCM(cmd.Context()) }
	add := func(use, short string, actions ...func(*cobra.Command, *lab.Lab) error) {
		cmd.AddCommand(&cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			if err := l.State.Lock(); err != nil {
				return err
			}
			defer l.State.Unlock()
			return ui.New(os.Stderr, false).Do("ccm "+use, func(func(string)) (string, error) {
				for _, action := range actions {
					if err := action(cmd, l); err != nil {
						return "", err
					}
				}
				return "", nil
			})
		}})
	}
	add("start", "Start it, unless it runs", start)
	add("stop", "Stop it; nodes and balancers stay as they are", stop)
	add("restart", "Stop it, then start it", stop, start)
	return cmd
}

func newEnv(o *options) *cobra.Command {
	return &cobra.Command{
		Use:     "env",
		Short:   "Print exports that make kubectl and fakecloud speak to the lab",
		Example: `  eval "$(lab env)"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			export := func(name, value string) {
				_, _ = fmt.Fprintf(cmd.OutOrStdout(), "export %s=%s\n", name, value)
			}
			export("KUBECONFIG", quote(l.Cluster.OperatorKubeconfig()))
			export("FAKECLOUD_URL", quote(l.Cluster.CloudURL()))
			export("FAKECLOUD_TOKEN_FILE", quote(l.Cluster.TokenFile("operator")))
			export("PATH", quote(strings.Join(l.BinDirs(), ":"))+":\"$PATH\"")
			return nil
		},
	}
}

// quote is for the shell: inside single quotes nothing is special but they.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func newKubeconfig(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the operator's kubeconfig",
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := o.open()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), l.Cluster.OperatorKubeconfig())
			return err
		},
	}
}
