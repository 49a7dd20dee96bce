package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

const (
	haproxy       = "haproxy"
	haproxySplice = "haproxy-splice"
	nginx         = "nginx"
	ipvs          = "ipvs"
)

// peer is a balancer that fakecloud's are compared with.
type peer struct {
	name, program, packages string
	config                  func(address string) string
	args                    func(config, dir string) []string // nil: it configures the kernel, and ends
}

var peers = []peer{
	{haproxy, "haproxy", "haproxy", func(address string) string { return haproxyConfig(address, false) }, haproxyArgs},
	{
		haproxySplice, "haproxy", "haproxy", func(address string) string { return haproxyConfig(address, true) },
		haproxyArgs,
	},
	{nginx, "nginx", "nginx-light libnginx-mod-stream", nginxConfig, func(config, dir string) []string {
		return []string{"-p", dir, "-e", "stderr", "-c", config}
	}},
	{ipvs, "ipvsadm", "ipvsadm", ipvsConfig, nil},
}

func haproxyArgs(config, _ string) []string { return []string{"-db", "-f", config} }

func peerNames() []string {
	var names []string
	for _, p := range peers {
		names = append(names, p.name)
	}
	return names
}

// findProgram finds the peer's program on the path or where Debian installs servers.
func (p peer) findProgram() (string, error) {
	for _, name := range []string{p.program, "/usr/sbin/" + p.program, "/usr/local/sbin/" + p.program} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: apt-get install %s", errNotInstalled, p.packages)
}

// peerAddress is the address of a peer's own.
func peerAddress(name string) string { return ownAddress(101 + indexOf(name)) }

// ipvsAddress is also the backends', to which IPVS passes packets on.
func ipvsAddress() string { return peerAddress(ipvs) }

// startPeer starts the peer at an address of its own, and waits until it forwards.
func (s *stage) startPeer(ctx context.Context, p peer) (*contender, error) {
	path, err := p.findProgram()
	if err != nil {
		return nil, err
	}
	c := &contender{name: p.name, address: peerAddress(p.name)}
	if err := s.addBalancerAddress(c.address); err != nil {
		return nil, err
	}
	if p.args == nil {
		cmd := exec.CommandContext(ctx, path, "--restore")
		cmd.Stdin = strings.NewReader(p.config(c.address))
		var said []byte
		s.doOnBalancer(func() { said, err = cmd.CombinedOutput() })
		if err != nil {
			return nil, fmt.Errorf("no IP_VS: %.200s (%w)", firstLine(said), err)
		}
		return c, c.awaitForwarding(ctx)
	}
	config := filepath.Join(s.dir, p.name+".conf")
	if err := os.WriteFile(config, []byte(p.config(c.address)), 0o600); err != nil {
		return nil, err
	}
	s.doOnBalancer(func() {
		c.process, err = harness.Start(
			exec.Command(path, p.args(config, s.dir)...), filepath.Join(s.dir, p.name+".log"),
		)
	})
	if err != nil {
		return nil, err
	}
	if err := c.awaitForwarding(ctx); err != nil {
		c.process.Kill()
		return nil, fmt.Errorf("does not run (apt-get install %s): %w", p.packages, err)
	}
	return c, nil
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

// ipvsConfig is what ipvsadm --restore reads: every port goes to all backends in turn, by direct routing, so that
// they answer clients by themselves. What an earlier stage said is cleared first.
func ipvsConfig(address string) string {
	var c strings.Builder
	_, _ = fmt.Fprintln(&c, "-C")
	add := func(protocol string, port int) {
		_, _ = fmt.Fprintf(&c, "-A %s %s -s rr\n", protocol, hostPort(address, port))
		for _, backend := range backendAddresses() {
			_, _ = fmt.Fprintf(&c, "-a %s %s -r %s -g -w 1\n", protocol, hostPort(address, port), hostPort(backend, port))
		}
	}
	for _, port := range tcpPorts {
		add("-t", port)
	}
	add("-u", portUDP)
	return c.String()
}

func indexOf(name string) int {
	return slices.IndexFunc(peers, func(p peer) bool { return p.name == name })
}

// haproxyConfig configures a plain proxy that uses the whole machine: a thread for each core, no
// logs, no checks, many connections, and round robin as fakecloud.
func haproxyConfig(address string, splice bool) string {
	var c strings.Builder
	_, _ = fmt.Fprintf(
		&c, "global\n  nbthread %d\n  maxpipes %d\n  maxconn %d\n", runtime.NumCPU(), maxPipes, haproxyConnections(),
	)
	_, _ = fmt.Fprintf(&c, "defaults\n  mode tcp\n  balance roundrobin\n  maxconn %d\n", haproxyConnections())
	_, _ = fmt.Fprintln(&c, "  timeout connect 5s\n  timeout client 10m\n  timeout server 10m")
	if splice {
		_, _ = fmt.Fprintln(&c, "  option splice-auto")
	}
	for _, port := range tcpPorts {
		_, _ = fmt.Fprintf(&c, "listen p%d\n  bind %s\n", port, hostPort(address, port))
		for i, backend := range backendAddresses() {
			_, _ = fmt.Fprintf(&c, "  server b%d %s\n", i, hostPort(backend, port))
		}
	}
	return c.String()
}

// maxPipes is enough to splice both directions of every stream. HAProxy's default would be a quarter
// of the connections.
const maxPipes = 32

// haproxyConnections is the most connections that HAProxy can have with the limit of open files: it
// refuses to start with more, and allocates memory for all of them.
func haproxyConnections() int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 1000
	}
	return int(min(l.Max, 1<<17)-spareFiles/2-2*maxPipes) / 2
}

// nginxConfig forwards datagrams to the backends in turn, in sessions with the same idle timeout as
// fakecloud's. Each worker has a socket of its own (reuseport): sessions belong to a worker, and
// a client's datagrams would otherwise begin one in each. The namespace may have no other user than root.
func nginxConfig(address string) string {
	var c strings.Builder
	for _, module := range []string{
		"/usr/lib/nginx/modules/ngx_stream_module.so", "/usr/lib64/nginx/modules/ngx_stream_module.so",
	} {
		if _, err := os.Stat(module); err == nil {
			_, _ = fmt.Fprintf(&c, "load_module %s;\n", module)
			break
		}
	}
	_, _ = fmt.Fprintln(&c, "user root;\ndaemon off;\nworker_processes auto;\npid nginx.pid;\nerror_log stderr error;")
	_, _ = fmt.Fprintln(&c, "events { worker_connections 8192; }\nstream {\n  access_log off;\n  upstream backends {")
	for _, backend := range backendAddresses() {
		_, _ = fmt.Fprintf(&c, "    server %s;\n", hostPort(backend, portUDP))
	}
	_, _ = fmt.Fprintf(&c, "  }\n  server {\n    listen %s udp reuseport rcvbuf=4m;\n", hostPort(address, portUDP))
	_, _ = fmt.Fprintln(&c, "    proxy_pass backends;\n    proxy_timeout 30s;\n  }\n}")
	return c.String()
}

var version = regexp.MustCompile(`(?:HAProxy version |nginx/|ipvsadm v)(\S+)`)

// peerVersions are the versions of the installed peers, by name.
func peerVersions(ctx context.Context, names []string) map[string]string {
	found := map[string]string{}
	for _, name := range names {
		path, err := peers[indexOf(name)].findProgram()
		if err != nil {
			continue
		}
		text, _ := exec.CommandContext(ctx, path, "-v").CombinedOutput()
		if m := version.FindSubmatch(text); m != nil {
			found[name] = string(m[1])
		}
	}
	return found
}
