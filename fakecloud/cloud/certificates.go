package cloud

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// maxCertificates is how many a project may have.
const maxCertificates = 500

// Certificate is one for listeners of https and tls. Its private key is in no document, and so in no answer, event or backup.
type Certificate struct{ api.Certificate }

func (c Certificate) describe() description {
	return description{rowOf(api.ResourceCertificate, c.Metadata), ""}
}

func (c *Cloud) certificates() Kind[Certificate, api.CertificateCreate, api.ResourceUpdate] {
	return Kind[Certificate, api.CertificateCreate, api.ResourceUpdate]{
		cloud: c, idPrefix: "cert", limit: maxCertificates,
		check: func(spec api.CertificateCreate) (api.ResourceUpdate, error) {
			return api.ResourceUpdate{Name: &spec.Name, Tags: spec.Tags, Records: spec.Records}, checkCertificate(spec)
		},
		build: newCertificate, beforeDelete: forgetCertificate,
	}
}

// newCertificate keeps the private key aside.
func newCertificate(
	ctx context.Context,
	tx *changeTx,
	p Project,
	spec api.CertificateCreate,
) (c Certificate, err error) {
	leaf, err := parseCertificate(spec.Certificate)
	if err != nil {
		return c, err
	}
	sum := sha256.Sum256(leaf.Raw)
	c.Certificate.Certificate, c.Fingerprint = spec.Certificate, hex.EncodeToString(sum[:])
	c.DomainNames = append([]string{}, leaf.DNSNames...)
	c.NotBefore, c.NotAfter = leaf.NotBefore.UTC(), leaf.NotAfter.UTC()
	return c, tx.InsertCertificateKey(ctx, db.InsertCertificateKeyParams{
		ProjectID: p.ID, Fingerprint: c.Fingerprint, PrivateKey: spec.PrivateKey,
	})
}

// parseCertificate reads the first of a chain.
func parseCertificate(chain string) (*x509.Certificate, error) {
	block, _ := pem.Decode([]byte(chain))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, refuse(InvalidRequest, "want the certificate, and its chain after it, as PEM").
			withField("certificate", "is not a certificate as PEM")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, refuse(InvalidRequest, "the certificate cannot be read: %v", err).withField("certificate", "is not valid")
	}
	return leaf, nil
}

// checkCertificate refuses what is no certificate, and a key that is not its own.
func checkCertificate(spec api.CertificateCreate) error {
	if _, err := parseCertificate(spec.Certificate); err != nil {
		return err
	}
	if _, err := tls.X509KeyPair([]byte(spec.Certificate), []byte(spec.PrivateKey)); err != nil {
		return refuse(
			InvalidRequest, "want the private key of the certificate as PEM: %s", strings.TrimPrefix(err.Error(), "tls: "),
		).withField("privateKey", "is not the certificate's")
	}
	return nil
}

// forgetCertificate refuses to delete a certificate that a listener has, and removes the private key of any other.
func forgetCertificate(ctx context.Context, tx *changeTx, p Project, c Certificate) error {
	lb, err := tx.BalancerOfCertificate(ctx, db.BalancerOfCertificateParams{ProjectID: p.ID, Certificate: c.ID})
	switch {
	case err == nil:
		return refuse(
			InUse, "certificate %q (%s) is in use, by load balancer %s: give its listeners another one first", c.Name, c.ID, lb,
		)
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	return tx.DeleteCertificateKey(ctx, db.DeleteCertificateKeyParams{
		ProjectID: p.ID, Fingerprint: c.Fingerprint, Certificate: c.ID,
	})
}

// keyPair gives a project's certificate with its private key.
func keyPair(ctx context.Context, tx *store.Tx, project, id string) (tls.Certificate, error) {
	c, err := resourceByID[Certificate](ctx, tx, id)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate %s: %w", id, err)
	}
	key, err := tx.CertificateKey(ctx, db.CertificateKeyParams{ProjectID: project, Fingerprint: c.Fingerprint})
	if errors.Is(err, sql.ErrNoRows) {
		return tls.Certificate{}, refuse(
			UnknownCertificate, "the private key of certificate %q (%s) is not here, as no snapshot has it: create the "+
				"certificate anew, and give that one to the listener", c.Name, c.ID,
		)
	}
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair([]byte(c.Certificate.Certificate), []byte(key))
}
