package program

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var _ interface {
	conformance.Replicated
	conformance.Replica
	conformance.ClusterRenamer
} = (*CCM)(nil)

// Replica implements Replicated: another process of the program, with a port, a log
// and, if that is made of a template, a configuration of its own.
func (p *CCM) Replica(number int) (conformance.Replica, error) {
	if number == 0 {
		return p, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.replicas[number]; r != nil {
		return r, nil
	}
	r := &CCM{
		Path: p.Path, Args: p.Args, Env: p.Env, ConfigTemplate: p.ConfigTemplate, Values: p.Values, Host: p.Host,
		Noise:   p.Noise,
		LogFile: replicaFile(p.LogFile, number), component: Component + "-" + strconv.Itoa(number+1),
	}
	if p.ConfigTemplate != "" {
		r.Values.CloudConfig = replicaFile(p.Values.CloudConfig, number)
	}
	var err error
	if r.Values.Port, err = freePort(p.Values.Address); err != nil {
		return nil, err
	}
	if p.replicas == nil {
		p.replicas = map[int]*CCM{}
	}
	p.replicas[number] = r
	return r, nil
}

// replicaFile is the name of a replica's file: ccm.log becomes ccm-2.log for the second.
func replicaFile(file string, number int) string {
	ext := filepath.Ext(file)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(file, ext), number+1, ext)
}

// freePort is one that nobody listens on at this address, nor at all of them.
func freePort(address string) (int, error) {
	all, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return 0, err
	}
	port := all.Addr().(*net.TCPAddr).Port
	if err := all.Close(); err != nil {
		return 0, err
	}
	l, err := net.Listen("tcp4", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	return port, l.Close()
}
