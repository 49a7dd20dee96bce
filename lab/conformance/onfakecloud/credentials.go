package onfakecloud

// The CCM's token, when it is not what it should be, and the CA by which it knows the cloud: the file in
// which the CCM has it is given another one. The cloud's own token of that name stays as it is,
// and comes back: it is by its name that faults and calls are the CCM's.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/pki"
)

// ExpireCredentials implements protocol.Operations.
func (c *Cloud) ExpireCredentials(ctx context.Context) (protocol.Injection, error) {
	return c.Hold(c.expireCredentials(ctx))
}

func (c *Cloud) expireCredentials(ctx context.Context) (protocol.Injected, error) {
	own, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("the CCM's token: %w", err)
	}
	refused, err := c.makeFault(ctx, conformance.Fault{Kind: conformance.FaultUnauthorized})
	if err != nil {
		return nil, err
	}
	return &expiry{Injected: refused, c: c, own: own}, nil
}

// expiry refuses the CCM's token, whatever is in its file meanwhile.
type expiry struct {
	protocol.Injected
	c       *Cloud
	own     []byte
	project string
	renewed string // the name of the token in the file; "" until there is one
}

func (e *expiry) Renew(ctx context.Context) error {
	project, err := e.c.API.Project(ctx)
	if err != nil {
		return err
	}
	name := e.c.Token + "-renewed-" + strings.ToLower(rand.String(6))
	made, err := e.c.API.CreateToken(ctx, project.ID, api.TokenCreate{Name: name, Role: api.RoleEditor})
	if err != nil {
		return err
	}
	e.project, e.renewed = project.ID, name
	return atomicfile.Write(e.c.TokenFile, []byte(made.Secret))
}

func (e *expiry) Lift(ctx context.Context) error {
	err := errors.Join(e.Injected.Lift(ctx), atomicfile.Write(e.c.TokenFile, e.own))
	if e.renewed == "" || err != nil {
		return err
	}
	return unlessNotFound(e.c.API.DeleteToken(ctx, e.project, e.renewed))
}

// RenewCA implements protocol.Operations. The CCM's file has the former CA beside the new one, as a rotation
// begins with.
func (c *Cloud) RenewCA(ctx context.Context) (protocol.Injection, error) {
	return c.Hold(c.renewCA(ctx))
}

func (c *Cloud) renewCA(ctx context.Context) (protocol.Injected, error) {
	own, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("the cloud's CA: %w", err)
	}
	host, _, err := net.SplitHostPort(c.Gate.Address())
	if err != nil {
		return nil, err
	}
	certificate, ca, err := newCertificate(host)
	if err != nil {
		return nil, err
	}
	changed, err := c.Gate.PresentCertificate(certificate, own)
	if err != nil {
		return nil, err
	}
	r := &renewedCA{Injected: changed, file: c.CAFile, own: own}
	if err := atomicfile.Write(c.CAFile, slices.Concat(ca, own)); err != nil {
		return nil, errors.Join(err, r.Lift(ctx))
	}
	return r, nil
}

// newCertificate makes a CA, and a certificate of it for a host.
func newCertificate(host string) (certificate tls.Certificate, ca []byte, err error) {
	dir, err := os.MkdirTemp("", "ccmlab-renewed-ca-")
	if err != nil {
		return certificate, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	authority, err := pki.LoadOrCreate(dir, "renewed-ca")
	if err != nil {
		return certificate, nil, err
	}
	files, err := authority.Ensure(dir, "cloud", pki.Identity{Name: "cloud", Addresses: []string{host}})
	if err != nil {
		return certificate, nil, err
	}
	certificate, err1 := tls.LoadX509KeyPair(files.Cert, files.Key)
	ca, err2 := os.ReadFile(pki.PairAt(dir, "renewed-ca").Cert)
	return certificate, ca, errors.Join(err1, err2)
}

// renewedCA is the new certificate at the gate, and its CA in the CCM's file.
type renewedCA struct {
	protocol.Injected
	file string
	own  []byte
}

func (r *renewedCA) Lift(ctx context.Context) error {
	return errors.Join(r.Injected.Lift(ctx), atomicfile.Write(r.file, r.own))
}

// SwapCredentials implements protocol.Operations.
func (c *Cloud) SwapCredentials(ctx context.Context) (protocol.Injection, error) {
	return c.Hold(c.swapCredentials(ctx))
}

func (c *Cloud) swapCredentials(ctx context.Context) (protocol.Injected, error) {
	own, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("the CCM's token: %w", err)
	}
	name := c.Token + "-elsewhere-" + strings.ToLower(rand.String(6))
	other, err := c.API.CreateProject(ctx, api.ProjectCreate{Name: name})
	if err != nil {
		return nil, err
	}
	s := &swappedCredentials{c: c, own: own, project: other.ID}
	made, err := c.API.CreateToken(ctx, other.ID, api.TokenCreate{Name: name, Role: api.RoleEditor})
	if err == nil {
		// The audit of another project is not for us. A delay that nobody notices
		// counts its calls.
		s.Injected, err = c.createRule(ctx, api.FaultCreate{
			Match:  api.FaultMatch{Project: other.ID, Token: name, Operations: operations[conformance.Instances]},
			Effect: api.FaultEffect{DelayMilliseconds: 1},
		})
	}
	if err == nil {
		err = atomicfile.Write(c.TokenFile, []byte(made.Secret))
	}
	if err != nil {
		return nil, errors.Join(err, s.Lift(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// swappedCredentials is another project, whose token is in the CCM's token file.
type swappedCredentials struct {
	protocol.Injected // counts; nil until it can
	c                 *Cloud
	own               []byte
	project           string
}

// Lift ends the project and its token, too. What the CCM has made there, which it
// should not have, stays with the lab.
func (s *swappedCredentials) Lift(ctx context.Context) error {
	err := atomicfile.Write(s.c.TokenFile, s.own)
	if s.Injected != nil {
		err = errors.Join(err, s.Injected.Lift(ctx))
	}
	if gone := s.c.API.DeleteProject(ctx, s.project); gone != nil && !client.IsNotFound(gone) &&
		!client.HasCode(gone, api.InUse) {
		err = errors.Join(err, gone)
	}
	return err
}
