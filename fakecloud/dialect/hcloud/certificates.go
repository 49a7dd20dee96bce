package hcloud

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/certs"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// certificateRecord is what Hetzner's certificates have beside this cloud's. Its form is kept, so that fields are only
// ever added.
type certificateRecord struct {
	Version int  `json:"version"`
	Managed bool `json:"managed"`
}

var certificates = collection[api.Certificate, schema.Certificate]{
	one: "certificate", kind: api.ResourceCertificate, get: (*dialect.Request).GetCertificate, show: toCertificate,
	filters: []string{"type"}, list: listCertificates,
	update: (*dialect.Request).UpdateCertificate,
}

var certificateCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, certificates.path(), nil, createCertificate).Answers(http.StatusCreated),
	deleteCall(&certificates, deleteCertificate),
	// No issuance fails here.
	refusedCall(&certificates, http.MethodPost, "actions/retry",
		&cloud.Error{Code: unsupported, Message: "certificate not retryable"}),
}

func typeOfCertificate(c api.Certificate) (string, error) {
	kept, err := readRecord[certificateRecord](c.Records)
	if kept.Managed {
		return "managed", err
	}
	return "uploaded", err
}

func listCertificates(ctx context.Context, r *dialect.Request, name string) ([]api.Certificate, error) {
	all, err := r.ListCertificates(ctx, client.CertificateFilter{Name: name})
	types := r.HTTP.URL.Query()["type"]
	for _, t := range types {
		if t != "uploaded" && t != "managed" {
			return nil, dialect.Invalid("type", "must be uploaded or managed")
		}
	}
	return slices.DeleteFunc(all, func(c api.Certificate) bool {
		is, _ := typeOfCertificate(c)
		return len(types) > 0 && !slices.Contains(types, is)
	}), err
}

func toCertificate(ctx context.Context, r *dialect.Request, c *api.Certificate) (schema.Certificate, error) {
	out := schema.Certificate{
		ID: c.Serial, Name: c.Name, Labels: c.Tags, Certificate: c.Certificate, Created: c.CreatedAt,
		NotValidBefore: c.NotBefore, NotValidAfter: c.NotAfter, DomainNames: c.DomainNames,
		UsedBy: []schema.CertificateUsedByRef{},
	}
	var bytes []string
	for pair := range slices.Chunk([]byte(strings.ToUpper(c.Fingerprint)), 2) {
		bytes = append(bytes, string(pair))
	}
	out.Fingerprint = strings.Join(bytes, ":")
	var err error
	if out.Type, err = typeOfCertificate(*c); err != nil {
		return out, err
	}
	if out.Type == "managed" {
		out.Status = &schema.CertificateStatusRef{Issuance: "completed", Renewal: "unavailable"} // None is renewed here.
	}
	balancers, err := r.LoadBalancers(ctx)
	for _, lb := range balancers {
		if slices.ContainsFunc(lb.Listeners, func(l api.Listener) bool { return slices.Contains(l.CertificateIDs, c.ID) }) {
			out.UsedBy = append(out.UsedBy, schema.CertificateUsedByRef{ID: lb.Serial, Type: "load_balancer"})
		}
	}
	return out, err
}

func createCertificate(ctx context.Context, r *dialect.Request, q schema.CertificateCreateRequest) (any, error) {
	create := api.CertificateCreate{
		Name: q.Name, Certificate: q.Certificate, PrivateKey: q.PrivateKey, Tags: (*api.Tags)(q.Labels),
	}
	isManaged := q.Type == "managed"
	err := checkLabels(api.ValueOf(q.Labels))
	switch {
	case err != nil:
	case isManaged:
		create.Certificate, create.PrivateKey, err = issueCertificate(r, q.DomainNames)
	case q.Type != "" && q.Type != "uploaded":
		err = dialect.Invalid("type", "must be uploaded or managed")
	case q.Certificate == "":
		err = dialect.Invalid("certificate", "is required")
	case q.PrivateKey == "":
		err = dialect.Invalid("private_key", "is required")
	}
	if err != nil {
		return nil, err
	}
	create.Records = dialect.WithRecord(name, nil, certificateRecord{Version: recordVersion, Managed: isManaged})
	c, err := r.CreateCertificate(ctx, create)
	if err != nil {
		return nil, err
	}
	var answer schema.CertificateCreateResponse
	if isManaged {
		action, err := certificates.recordAction(ctx, r, "create_certificate", "", c)
		if err != nil {
			return nil, err
		}
		answer.Action = &action
	}
	answer.Certificate, err = toCertificate(ctx, r, c)
	return answer, err
}

var domainName = regexp.MustCompile(`^(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z][-a-z0-9]*[a-z0-9]$`)

// issueCertificate makes a certificate for domain names, which signs itself, and its private key. It is valid for 90 days, as
// Let's Encrypt's are.
func issueCertificate(r *dialect.Request, domains []string) (certificate, privateKey string, err error) {
	if len(domains) == 0 {
		return "", "", dialect.Invalid("domain_names", "is required")
	}
	for _, d := range domains {
		if !domainName.MatchString(d) {
			return "", "", dialect.Invalid("domain_names", "%q is no domain name", d)
		}
	}
	now := r.Now()
	pair, err := certs.Issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: domains[0]}, DNSNames: domains, NotAfter: now.AddDate(0, 0, 90),
	}, nil, now)
	if err != nil {
		return "", "", err
	}
	cert, key, err := pair.Encode()
	return string(cert), string(key), err
}

func deleteCertificate(ctx context.Context, r *dialect.Request, c *api.Certificate) error {
	err := r.DeleteCertificate(ctx, c.ID)
	if client.HasCode(err, api.ProblemCode(cloud.InUse)) {
		err = &cloud.Error{Code: "resource_in_use", Message: "certificate " + c.Name + " is used by a load balancer"}
	}
	return err
}
