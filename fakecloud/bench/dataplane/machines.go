package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/ccmlab/ccmlab/fakecloud/internal/netns"
)

// machines are the network namespaces around a switch. The process's own one has the clients.
type machines struct {
	network *netns.Network
	// balancer has the cloud and the other proxies.
	balancer *netns.Namespace
	backends []*netns.Namespace
}

// The addresses of the clients and of fakecloud's own machine, and the cloud's range of balancers: it gives the
// lowest one first.
const (
	clientHost, balancerHost = 250, 251
	balancerRange            = "128.0/17"
)

// inNamespace is set in the environment of the process that enterNamespace starts.
const inNamespace = "BENCH_DATAPLANE_NAMESPACE"

// enterNamespace runs the program again, in a network namespace of its own, and ends as that ends. In that process
// it returns.
func enterNamespace() {
	if os.Getenv(inNamespace) != "" {
		return
	}
	program, err := os.Executable()
	if err == nil {
		cmd := exec.Command(program, os.Args[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		cmd.SysProcAttr = netns.RootAttr()
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
		if err = cmd.Start(); err == nil {
			go func() {
				for s := range signals {
					_ = cmd.Process.Signal(s)
				}
			}()
			err = cmd.Wait()
		}
	}
	var ended *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &ended) && ended.ExitCode() > 0:
		os.Exit(ended.ExitCode())
	}
	fmt.Fprintf(
		os.Stderr, "bench-dataplane: no network namespace: %v; run it as root, or let users have user namespaces\n", err,
	)
	os.Exit(1)
}

// newMachines makes the network. The caller closes it, also after an error.
func newMachines() (*machines, error) {
	m := &machines{}
	var err error
	if m.network, err = netns.NewNetwork(); err != nil {
		return m, err
	}
	if err := m.network.Plug(netip.MustParseAddr(ownAddress(clientHost))); err != nil {
		return m, err
	}
	if m.balancer, err = m.newMachine(ownAddress(balancerHost)); err != nil {
		return m, err
	}
	for _, address := range backendAddresses() {
		backend, err := m.newMachine(address)
		if err != nil {
			return m, err
		}
		m.backends = append(m.backends, backend)
	}
	return m, nil
}

func (m *machines) newMachine(address string) (*netns.Namespace, error) {
	n, err := netns.New()
	if err == nil {
		n.Do(func() { err = m.network.Plug(netip.MustParseAddr(address)) })
	}
	return n, err
}

func (m *machines) close() {
	for _, n := range append(m.backends, m.balancer) {
		if n != nil {
			n.Close()
		}
	}
	if m.network != nil {
		m.network.Close()
	}
}

// doOnBalancer calls a function on the balancers' machine. Without machines, in tests, all addresses are of loopback.
func (m *machines) doOnBalancer(f func()) {
	if m == nil {
		f()
		return
	}
	m.balancer.Do(f)
}

// addBalancerAddress adds an address to the balancers' machine.
func (m *machines) addBalancerAddress(address string) (err error) {
	if m == nil {
		return nil
	}
	m.balancer.Do(func() { err = netns.AddAddress("eth0", netip.PrefixFrom(netip.MustParseAddr(address), 32)) })
	return err
}

// takeAddresses has each backend's machine take packets for balancers that pass them on.
func (m *machines) takeAddresses(addresses ...string) error {
	var errs []error
	for _, n := range m.backends {
		n.Do(func() {
			for _, address := range addresses {
				errs = append(errs, netns.TakeAddress(netip.MustParseAddr(address)))
			}
		})
	}
	return errors.Join(errs...)
}

// newTransport goes to servers on loopback of the balancers' machine.
func (m *machines) newTransport() http.RoundTripper {
	return &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		m.balancer.Do(func() { conn, err = dialer.DialContext(ctx, network, address) })
		return conn, err
	}}
}
