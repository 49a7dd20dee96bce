package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// What apply does with a resource.
const (
	created   = "created"
	updated   = "updated"
	unchanged = "unchanged"
	failed    = "failed"
)

// applied is one resource and what apply did with it.
type applied struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	ID     string `json:"id,omitempty"`
	Action string `json:"action"`
	// Changes are the fields that an update changes.
	Changes []string `json:"changes,omitempty"`
}

type appliedList struct {
	DryRun bool       `json:"dryRun,omitempty"`
	Items  []*applied `json:"items"`
}

func (a *app) applyCommand() *cobra.Command {
	var file string
	var dryRun bool
	var w waiter
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create what a manifest asks for, and update what differs",
		Long: `Create what a manifest asks for, and update what differs. Resources are found by
their names. A field that the manifest leaves out is not changed, tags that it
does not name are kept, and so are resources that it does not name: nothing is
ever deleted. Applying the same manifest again changes nothing. It is checked as
a whole before anything is changed.

The manifest is YAML:

  quotas: {instances: 100}    # the project's; this needs an admin's token
  networks:                   # as in POST /v1/networks
  - {name: backend, cidr: 10.20.0.0/16}
  addresses:                  # as in POST /v1/addresses
  - name: web
  instances:                  # as in POST /v1/instances, and
  - name: node-1
    zone: nebula-1a
    network: backend          # by name
    state: stopped            # running or stopped
  loadBalancers:              # as in POST /v1/load-balancers, but
  - name: web
    listeners:
    - {protocol: tcp, port: 8080, targetPort: 30080}
    - protocol: https
      port: 8443
      targetPort: 30443
      certificates: [shop]    # by name, or certificateIds
      targets: [node-1]       # its own, instead of the balancer's
    targets:                  # instances by name, addresses, and what else targets have
    - node-1
    - 127.90.0.9
    - {instance: node-2, weight: 3, drain: true}
    - {ip: 127.90.0.10, backup: true}
    reservedAddress: web      # by name
    ipFamilies: [ipv4, ipv6]  # as final as an address
  firewalls:                  # as in POST /v1/firewalls, but
  - name: web
    instances: [node-1]       # by name
    rules: [{protocol: tcp, firstPort: 30080, lastPort: 30080}]
  routes:                     # as in POST /v1/routes, but
  - name: node-1
    destination: 10.244.1.0/24
    instance: node-1          # an instance by name`,
		Example: `  fakecloud apply -f cloud.yaml --wait
  fakecloud apply -f - --dry-run < cloud.yaml`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if file == "" {
				return clikit.Usagef("give the manifest with -f FILE, or -f - for standard input")
			}
			wanted, err := readManifest(cmd, file)
			if err != nil {
				return clikit.Usage(err)
			}
			p := &plan{
				app: a, cmd: cmd, client: c, waiter: &w, instances: map[string]*api.Instance{}, ids: map[string]string{},
			}
			if err := p.computeSteps(cmd.Context(), wanted); err != nil {
				return err
			}
			if dryRun {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "a dry run: nothing was changed")
			} else {
				err = p.run(cmd.Context())
			}
			return errors.Join(err, a.printApplied(cmd, appliedList{dryRun, p.appliedResources()}))
		}),
	}
	a.addOutput(cmd)
	w.addFlags(a, cmd)
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the manifest, or - for standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would change")
	return cmd
}

func readManifest(cmd *cobra.Command, file string) ([]*wantedResource, error) {
	if file == "-" {
		return parseManifest("standard input", cmd.InOrStdin())
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return parseManifest(file, io.Reader(f))
}

func (a *app) printApplied(cmd *cobra.Command, list appliedList) error {
	var rows [][]string
	for _, r := range list.Items {
		changes := "-"
		if len(r.Changes) > 0 {
			changes = strings.Join(r.Changes, ",")
		}
		rows = append(rows, []string{r.Kind, r.Name, r.Action, changes})
	}
	return a.printOutput(cmd, list, "KIND NAME ACTION CHANGES", rows)
}
