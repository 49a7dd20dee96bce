package hcloud

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"
	"golang.org/x/crypto/ssh"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

type sshKeyRecord struct {
	PublicKey   string `json:"publicKey"`
	Fingerprint string `json:"fingerprint"` // of MD5
}

// sshKeys reach no machine.
var sshKeys = recordCollection("ssh_key", toSSHKey, "fingerprint")

var sshKeyCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, sshKeys.path(), nil, createSSHKey).Answers(http.StatusCreated),
	deleteCall(&sshKeys, deleteRecord),
}

func toSSHKey(_ context.Context, _ *dialect.Request, d *cloud.DialectRecord) (schema.SSHKey, error) {
	record, err := readRecord[sshKeyRecord](d.Records)
	return schema.SSHKey{
		ID: d.Serial, Name: d.Name, Labels: d.Tags, Created: d.CreatedAt, PublicKey: record.PublicKey,
		Fingerprint: record.Fingerprint,
	}, err
}

func createSSHKey(ctx context.Context, r *dialect.Request, q schema.SSHKeyCreateRequest) (any, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(q.PublicKey))
	if err != nil {
		return nil, dialect.Invalid("public_key", "is no public key of SSH")
	}
	record := sshKeyRecord{PublicKey: strings.TrimSpace(q.PublicKey), Fingerprint: ssh.FingerprintLegacyMD5(key)}
	has, err := listRecords(ctx, r, sshKeys.one)
	if err != nil {
		return nil, err
	}
	for _, d := range has {
		if k, _ := toSSHKey(ctx, r, &d); k.Fingerprint == record.Fingerprint {
			return nil, &cloud.Error{Code: cloud.NameTaken, Message: "SSH key with the same fingerprint already exists"}
		}
	}
	d, err := createRecord(ctx, r, sshKeys.one, q.Name, q.Labels, record)
	if err != nil {
		return nil, err
	}
	return sshKeys.answer(ctx, r, d)
}

// checkSSHKeys refuses keys, given by ID or name, that are not there.
func checkSSHKeys(ctx context.Context, r *dialect.Request, keys []schema.IDOrName) error {
	if len(keys) == 0 {
		return nil
	}
	has, err := listRecords(ctx, r, sshKeys.one)
	if err != nil {
		return err
	}
	for _, k := range keys {
		if !slices.ContainsFunc(has, func(d cloud.DialectRecord) bool {
			return d.Serial == k.ID || k.ID == 0 && d.Name == k.Name
		}) {
			return dialect.NotFound("SSH key not found")
		}
	}
	return nil
}
