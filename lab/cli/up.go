package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/status"
)

const maxNodes = 100

func newUp(o *globalOptions) *cobra.Command {
	var (
		opts  lifecycle.Options
		fg    *foregroundFlags
		guest guestFlags
		ccm   string
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the lab up, or complete one that is there",
		Long: `up starts the cloud, the cluster, some instances with a node each, a demo
behind a Service of type LoadBalancer, and the CCM, and waits for the first
answer through the load balancer. On a lab that is up it adds what is missing.

There are three kinds of cluster:
  embedded  upstream's control plane and simulated nodes as plain processes: no
            Docker, no root; seconds. The default.
  kind      real kubelets, pods and kube-proxy in containers, the cloud in one
            beside them, the CCM as a Deployment. Needs Docker or Podman. Each
            node reports all that the computer has, whatever its instance's type.
  external  a cluster you have (--kubeconfig): only a cloud and the CCM are
            added, no demo. Its nodes that wait for a CCM become instances.`,
		Example: `  lab up --nodes 5 --profile realistic
  lab up --cluster kind         # the same with real kubelets, in containers
  lab up --cluster external --kubeconfig my.yaml
  lab up --name second          # another lab beside the first
  lab up --dialect hcloud --ccm ./hcloud-cloud-controller-manager   # another cloud's CCM, unmodified
  lab up --dialect hcloud       # no CCM yet, and how to start one in a debugger, say
  lab up --kubelet-provider-ids 'mine://{{.ID}}' --ccm ./my-ccm   # a CCM that needs the provider ID
  lab up --without-ccm          # see what waits for a CCM
  lab up --name plain --cloud-provider none   # one that waits for none; then: lab compare plain lab
  lab up --foreground --publish 0.0.0.0:8080   # for a container: the demo on that port, until SIGTERM`,
		Args: func(cmd *cobra.Command, args []string) error {
			return clikit.RejectArguments(cmd, args[:countBeforeDash(cmd, args)])
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			opts.Name = o.name
			if err := guest.forUp(&opts, ccm, args); err != nil {
				return err
			}
			opts.Fleeting = fg.enabled // A new lab that fails to come up is then taken down again.
			if err := validateUp(opts, cmd.Flags().Changed("nodes")); err != nil {
				return err
			}
			published, err := fg.listenOnPorts(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = published.Close() }()
			format := clikit.Output(cmd)
			steps := o.newSteps()
			if format == "table" && !o.quiet {
				if note := kindSuggestion(cmd.Context(), opts); note != "" {
					steps.Say("%s", note)
				}
			}
			opts.InstanceQuota = state.SeatInstances()
			l, outcome, err := lifecycle.Up(cmd.Context(), opts, steps)
			if err != nil {
				return err
			}
			st, err := status.Of(cmd.Context(), l)
			if err != nil {
				return err
			}
			switch {
			case format != "table":
				err = clikit.PrintData(cmd.OutOrStdout(), format, upResult{st, outcome})
			case !o.quiet:
				err = printUpSummary(cmd, l, st, outcome, opts, guest.dialect)
				if err == nil && guest.dialect != "" && ccm == "" {
					err = printPresetCommand(cmd, l, guest.dialect)
				}
			}
			if err == nil && fg.enabled {
				err = fg.watchUntilEnd(cmd.Context(), cmd, l, outcome, published)
			}
			return err
		},
	}
	fg = addForeground(cmd)
	kind := cluster.KindNamed(cluster.KindKind)
	cmd.Flags().StringVar(
		&opts.Cluster, "cluster", "",
		"kind of cluster: "+strings.Join(cluster.KindNames(), ", ")+" (default "+cluster.KindEmbedded+", or as before)",
	)
	cmd.Flags().IntVar(
		&opts.Nodes, "nodes", 0,
		"number of instances to see to (default 3 in an embedded cluster, 2 beside kind's control plane, or as before)",
	)
	cmd.Flags().StringVar(&opts.NodeImage, "node-image", "", fmt.Sprintf(
		"kind: the nodes' image (default %s where it is built, else %s)", kind.NodeImages[0], kind.NodeImages[1],
	))
	cmd.Flags().StringVar(
		&opts.PodNetwork, "pod-network", "",
		"kind: how pods on different nodes reach each other: routes, the cloud's, or kindnet (default routes, or as before)",
	)
	cmd.Flags().StringVar(&opts.Kubeconfig, "kubeconfig", "", "external: the cluster's kubeconfig file")
	cmd.Flags().StringVar(
		&opts.CloudProvider, "cloud-provider", "",
		"embedded: external, or none for a cluster that waits for no CCM and has no use for one (default external, or as before)",
	)
	cmd.Flags().StringVar(
		&opts.KubeletProviderIDs, "kubelet-provider-ids", "",
		"what kubelets get as --provider-id, a `TEMPLATE` with {{.ID}}, {{.Name}}, {{.Address}} and {{.Identities.DIALECT}} "+
			"of the instance, for CCMs that do not find instances by Node name; Nodes that run without get it from the lab "+
			"(default none, or as before)",
	)
	cmd.Flags().StringVar(
		&opts.Bundle, "bundle", "",
		"run from a bundle, a `FILE` that lab bundle packed, instead of what was built here",
	)
	cmd.Flags().StringVar(&opts.Profile, "profile", "", fmt.Sprintf(
		"how long the cloud takes for things: instant, fast or realistic (default %s, or as before)",
		lifecycle.DefaultProfile,
	))
	cmd.Flags().BoolVar(&opts.WithoutCCM, "without-ccm", false, "leave the CCM out: nodes stay tainted, pods Pending")
	cmd.Flags().StringVar(
		&ccm, "ccm", "",
		"a `PROGRAM` that is the CCM instead of the lab's own; its arguments after --, as of lab ccm use",
	)
	guest.add(cmd)
	cmd.Flags().DurationVar(
		&opts.StepTimeout, "step-timeout", 0,
		"how long each step may take before up gives up and says what it waited for (default 4m, and 3s for each node; for images 15m)",
	)
	clikit.AddOutput(cmd, "table", "json", "yaml")
	clikit.CompleteFlag(cmd, "cluster", cluster.KindNames()...)
	clikit.CompleteFlag(cmd, "cloud-provider", cluster.Providers...)
	clikit.CompleteFlag(cmd, "pod-network", kind.PodNetworks...)
	clikit.CompleteFlag(cmd, "profile", "instant", "fast", "realistic")
	return cmd
}

// kindSuggestionTimeout bounds the search for a container engine. An engine that hangs
// must not delay an embedded cluster, which does not need one.
const kindSuggestionTimeout = 2 * time.Second

// kindSuggestion returns a line that says that --cluster kind would work here too. It
// is empty if --cluster was given, if the lab exists, or if kind is not available.
func kindSuggestion(ctx context.Context, o lifecycle.Options) string {
	ctx, cancel := context.WithTimeout(ctx, kindSuggestionTimeout)
	defer cancel()
	if _, err := state.Open(o.Name); o.Cluster != "" || !errors.Is(err, state.ErrNone) {
		return ""
	}
	if why, err := cluster.KindNamed(cluster.KindKind).Available(ctx); err == nil {
		return fmt.Sprintf("   An embedded cluster; %s, so --cluster kind is there too, with real kubelets.", why)
	}
	return ""
}

// validateUp returns all mistakes in the flags of lab up at once.
func validateUp(o lifecycle.Options, nodesGiven bool) error {
	var errs []error
	if _, err := state.Dir(o.Name); err != nil {
		errs = append(errs, clikit.Usage(err))
	}
	if nodesGiven && (o.Nodes < 1 || o.Nodes > maxNodes) {
		errs = append(errs, clikit.Usagef("--nodes %d: want 1 to %d", o.Nodes, maxNodes))
	}
	if o.StepTimeout < 0 {
		errs = append(errs, clikit.Usagef("--step-timeout %s: want a positive duration, such as 10m", o.StepTimeout))
	}
	oneOf := func(flag, value string, choices []string) {
		if value != "" {
			errs = append(errs, clikit.CheckChoice(flag, value, choices))
		}
	}
	oneOf("profile", o.Profile, []string{"instant", "fast", "realistic"})
	oneOf("cluster", o.Cluster, cluster.KindNames())
	oneOf("pod-network", o.PodNetwork, cluster.KindNamed(cluster.KindKind).PodNetworks)
	oneOf("cloud-provider", o.CloudProvider, cluster.Providers)
	kind := cluster.KindNamed(o.Cluster)
	if kind == nil { // Reported above. It takes none of the flags below.
		kind = &cluster.Kind{}
	}
	if o.CloudProvider == cluster.ProviderNone && o.Cluster != "" && !kind.CloudProviderOptional {
		errs = append(errs, clikit.Usagef("--cloud-provider none is for --cluster embedded only"))
	}
	// Without --cluster an existing lab may be of any kind. It reports by itself which
	// flags it does not take.
	if _, err := state.Open(o.Name); o.Cluster != "" || errors.Is(err, state.ErrNone) {
		if len(kind.NodeImages) == 0 && (o.NodeImage != "" || o.PodNetwork != "") {
			errs = append(errs, clikit.Usagef("--node-image and --pod-network are for --cluster kind"))
		}
		if !kind.TakesKubeconfig && o.Kubeconfig != "" {
			errs = append(errs, clikit.Usagef("--kubeconfig is for --cluster external"))
		}
	}
	if kind.TakesKubeconfig && nodesGiven {
		errs = append(errs, clikit.Usagef("--nodes: an external cluster has the nodes it has"))
	}
	return errors.Join(errs...)
}

// upResult is what `lab up -o json` prints: the lab's status, and what this run did.
type upResult struct {
	*status.Status
	Up lifecycle.Outcome `json:"up"`
}
