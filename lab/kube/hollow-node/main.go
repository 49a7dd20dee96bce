// Command hollow-node is a Kubernetes node in one ordinary process: genuine kubelet code over a
// simulated container runtime, and a stand-in for kube-proxy. Begin with runNode.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version/verflag"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a mistake in the command line.
type usageError struct{ error }

func main() { os.Exit(runCommand(os.Args[1:])) }

func runCommand(arguments []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	command := newCommand()
	command.SetArgs(arguments)
	err := command.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "hollow-node: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		fmt.Fprintln(os.Stderr, "Run 'hollow-node --help' for what each flag means.")
		return exitUsage
	}
	return exitFailure
}

func newCommand() *cobra.Command {
	var o nodeOptions
	command := &cobra.Command{
		Use:           "hollow-node --name NAME --kubeconfig FILE --address IP ...",
		Short:         "A Kubernetes node in one ordinary process",
		Long:          longHelp,
		Example:       exampleHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) > 0 {
				return usageError{fmt.Errorf("hollow-node takes flags only, but got %q", arguments)}
			}
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := o.parseAndValidate(); err != nil {
				return usageError{err}
			}
			return runNode(command.Context(), o)
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	o.addFlags(command.Flags())
	return command
}

const longHelp = `hollow-node joins a cluster as one Kubernetes node without Docker and without root.

Its kubelet is Kubernetes' own code. Under it is a simulated runtime: a pod gets
an address 10.x.y.z from the node's podCIDR, and each port that its containers
declare is served on 127.x.y.z, TCP by an HTTP server and UDP by an echo, that
tell which pod, node and zone answered. So is each port that a probe asks, declared
or not: HTTP, TCP and gRPC health. Ports below 1024 are served 61000 higher. Images
are named but never run, volumes are plain directories, and kubectl logs and
port-forward work. Init containers end at once, and so do a Job's containers without
ports and probes. A missing Secret or ConfigMap is mounted empty after five seconds,
and an Event says so.

kubectl exec has three commands: env, hostname, and "exit N", which ends the
container with that code. Anything else is refused, with code 127, and so are
kubectl cp, a terminal (exec -t) and attach, each with what to do instead. Exec
probes and exec hooks succeed, and an Event says that nothing was run.

In place of kube-proxy it serves the node ports and health check node ports of
Services on its own address, and kube-proxy's /healthz and /livez on port 10256.

A container can be told to misbehave, to watch what Kubernetes makes of it: to
fail its probes, to be slow, to exit. Any container with a port answers GET /help
with all that it understands.

The kubelet registers with the taint node.cloudprovider.kubernetes.io/uninitialized
and without addresses: a cloud controller manager is expected to finish the node.
With --cloud-provider= it does neither, and says of itself that --address is its
InternalIP: a node of a cluster without an external cloud provider.

SIGTERM is a power cut: everything closes at once, and a later start with the same
--root-dir is a reboot.`

const exampleHelp = `  hollow-node --name node-1 --address 127.77.16.1 --port 10250 \
    --kubeconfig kubelet.kubeconfig --proxy-kubeconfig kube-proxy.kubeconfig \
    --tls-cert-file kubelet.crt --tls-private-key-file kubelet.key \
    --client-ca-file ca.crt --root-dir node-1`
