package oci

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

const certificates = loadBalancers + "/{id}/certificates"

var certificateCalls = []dialect.Call{
	list(certificates, nil, listCertificates),
	dialect.Handle(http.MethodPost, certificates, nil, addCertificate),
	dialect.Handle(http.MethodDelete, certificates+"/{name}", nil, deleteCertificate),
}

// certificate is a load balancer's own. This cloud has one certificate for it, of which the balancer's record has the
// ID.
type certificate struct {
	Name   string `json:"certificateName"`
	Public string `json:"publicCertificate"`
	CA     string `json:"caCertificate"`
}

// certificateRecord is what a native certificate was told.
type certificateRecord struct {
	Version int `json:"version"`
	certificate
}

type certificateDetails struct {
	certificate
	PrivateKey string `json:"privateKey"`
	Passphrase string `json:"passphrase"`
}

// create makes the native certificate, and gives its ID.
func (q certificateDetails) create(ctx context.Context, r *dialect.Request) (id string, err error) {
	switch {
	case q.Name == "":
		return "", dialect.Invalid("certificateName", "must be given")
	case q.Passphrase != "":
		return "", dialect.Invalid("passphrase", "is not supported: give the private key without one")
	}
	made, err := r.CreateCertificate(ctx, api.CertificateCreate{
		Name: dialect.NewName("oci-"), Certificate: q.Public + "\n" + q.CA, PrivateKey: q.PrivateKey,
		Tags:    &api.Tags{dialect.TagName: q.Name},
		Records: dialect.WithRecord(name, nil, certificateRecord{recordVersion, q.certificate}),
	})
	if err != nil {
		return "", err
	}
	return made.ID, nil
}

// createCertificates makes the native certificates of a balancer that is created: all, or none.
func (b *balancer) createCertificates(
	ctx context.Context,
	r *dialect.Request,
	given map[string]certificateDetails,
) error {
	made := map[string]string{}
	for called, q := range given {
		q.Name = called
		id, err := q.create(ctx, r)
		if err != nil {
			return errors.Join(err, forgetCertificates(ctx, r, made))
		}
		made[called] = id
	}
	b.rec.Certificates = made
	return nil
}

// forgetCertificates deletes native certificates, but for those that other balancers use.
func forgetCertificates(ctx context.Context, r *dialect.Request, ids map[string]string) (err error) {
	for _, id := range ids {
		failed := r.DeleteCertificate(ctx, id)
		if !client.HasCode(failed, api.ProblemCode(cloud.InUse)) && !client.HasCode(failed, api.NotFound) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// readCertificates gives the certificates of the balancer by name.
func (b *balancer) readCertificates(ctx context.Context, r *dialect.Request) (map[string]certificate, error) {
	all := map[string]certificate{}
	for called, id := range b.rec.Certificates {
		c, err := r.GetCertificate(ctx, id)
		if client.HasCode(err, api.NotFound) { // It was deleted natively.
			continue
		}
		var rec certificateRecord
		if err == nil {
			err = dialect.ReadRecord(name, c.Records, &rec)
		}
		if err != nil {
			return nil, err
		}
		all[called] = rec.certificate
	}
	return all, nil
}

func listCertificates(ctx context.Context, r *dialect.Request) (all []certificate, err error) {
	b, err := lbService.readBalancer(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	found, err := b.readCertificates(ctx, r)
	for _, called := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[called])
	}
	return all, err
}

func addCertificate(ctx context.Context, r *dialect.Request, q certificateDetails) (*dialect.Answer, error) {
	id, err := q.create(ctx, r)
	if err != nil {
		return nil, err
	}
	answer, err := lbService.changeBalancer(ctx, r, func(b *balancer) error {
		if b.rec.Certificates[q.Name] != "" {
			return dialect.Invalid("certificateName", "%q is one that the balancer has a certificate of", q.Name)
		}
		b.rec.Certificates[q.Name] = id
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, forgetCertificates(ctx, r, map[string]string{"": id}))
	}
	return answer, nil
}

func deleteCertificate(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	called, id := r.Var("name"), ""
	answer, err := lbService.changeBalancer(ctx, r, func(b *balancer) error {
		id = b.rec.Certificates[called]
		if id == "" {
			return dialect.NotFound("certificate %q not found", called)
		}
		for _, l := range b.listeners {
			if l.SSLConfiguration != nil && l.SSLConfiguration.CertificateName == called {
				return dialect.Invalid("certificateName", "%q cannot be deleted while listener %q names it", called, l.Name)
			}
		}
		delete(b.rec.Certificates, called)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return answer, forgetCertificates(ctx, r, map[string]string{called: id})
}

// sslConfiguration is a listener's, at which TLS ends. What the last four say is recorded.
type sslConfiguration struct {
	CertificateName       string   `json:"certificateName,omitempty"`
	CertificateIDs        []string `json:"certificateIds,omitempty"` // native ones
	VerifyPeerCertificate bool     `json:"verifyPeerCertificate"`
	VerifyDepth           int      `json:"verifyDepth"`
	CipherSuiteName       *string  `json:"cipherSuiteName,omitempty"`
	Protocols             []string `json:"protocols,omitempty"`
	ServerOrderPreference *string  `json:"serverOrderPreference,omitempty"`
	HasSessionResumption  *bool    `json:"hasSessionResumption,omitempty"`
}

// checkTLS refuses a listener whose TLS cannot end here.
func (b *balancer) checkTLS(l listener) error {
	c := l.SSLConfiguration
	if c == nil {
		return nil
	}
	_, known := b.rec.Certificates[c.CertificateName]
	switch {
	case len(b.service.nativeProtocols(l)) == 0:
		return dialect.Invalid("sslConfiguration", "is for load balancers only")
	case c.VerifyPeerCertificate:
		return dialect.Invalid("sslConfiguration.verifyPeerCertificate", "is not supported: clients show no certificate here")
	case c.CertificateName != "" && !known:
		return dialect.Invalid("sslConfiguration.certificateName", "%q is no certificate of the balancer", c.CertificateName)
	}
	return nil
}

// certificateIDs are the native ones by which a listener answers.
func (b *balancer) certificateIDs(l listener) []string {
	switch c := l.SSLConfiguration; {
	case c == nil:
		return nil
	case c.CertificateName != "":
		return []string{b.rec.Certificates[c.CertificateName]}
	default:
		return c.CertificateIDs
	}
}
