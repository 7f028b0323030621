//! Servers of other projects, each a process of its own: moto for S3, Azurite for Azure.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hearthfs::clock::Clock;
use hearthfs::remote::RemoteOptions;
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::HttpRequestBody;

use super::{ACCESS_KEY, BUCKET};

/// The account of every Azurite.
pub(crate) const AZURE_ACCOUNT: &str = "devstoreaccount1";
/// Its key, which is public.
pub(crate) const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
/// How long a server may take for its first answer.
const START_MAX: Duration = Duration::from_secs(30);

/// A server on a port of the loopback; dropping it ends the server.
#[derive(Debug)]
struct Process {
    child: Child,
    address: SocketAddr,
}

impl Process {
    /// Starts a program with the arguments for an address and a port.
    fn start(program: &Path, host: &str, port: &str, more: &[&str]) -> Result<Self, String> {
        let free = StdListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let child = Command::new(program)
            .args([host, "127.0.0.1", port, &address.port().to_string()])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", program.display()))?;
        let process = Self { child, address };
        process.wait_until_up(program);
        Ok(process)
    }

    fn wait_until_up(&self, program: &Path) {
        let clock = Clock::system();
        let start = clock.mono();
        while StdStream::connect(self.address).is_err() {
            let waited = clock.mono().saturating_sub(start);
            assert!(waited < START_MAX, "{} does not start", program.display());
            nap(Duration::from_millis(50));
        }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sends one request without a client library; returns the status.
    fn put(&self, path: &str, headers: &[(String, String)], body: &[u8]) -> u16 {
        let mut stream = StdStream::connect(self.address).expect("a connection");
        let mut head = format!("PUT /{path} HTTP/1.1\r\nHost: {}\r\n", self.address);
        for (name, value) in headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.extend(["Connection: close\r\n\r\n"]);
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(body).expect("sent");
        let mut answer = Vec::new();
        // Some servers reset the connection after their answer.
        let ended = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        status.unwrap_or_else(|| panic!("not an answer: {answer} ({ended:?})"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A moto server.
#[derive(Debug)]
pub(crate) struct Moto(Process);

impl Moto {
    /// Starts moto with one empty bucket; returns the reason if it is not installed.
    pub(crate) fn start() -> Result<Self, String> {
        let program = find("HEARTHFS_MOTO", "moto_server")?;
        let moto = Self(Process::start(&program, "-H", "-p", &[])?);
        assert_eq!(moto.put(BUCKET, b""), 200, "moto makes a bucket");
        Ok(moto)
    }

    /// Returns its address, as a URL.
    pub(crate) fn endpoint(&self) -> String {
        self.0.endpoint()
    }

    /// Returns the options of a remote for it.
    pub(crate) fn options(&self, deadline: Duration) -> RemoteOptions {
        RemoteOptions { endpoint: Some(self.endpoint()), deadline, ..RemoteOptions::default() }
    }

    /// Writes a bucket or an object; returns the status.
    pub(crate) fn put(&self, path: &str, body: &[u8]) -> u16 {
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/20250101/us-east-1/s3/aws4_request, \
             SignedHeaders=host, Signature=0"
        );
        let headers = [
            ("Content-Length".to_owned(), body.len().to_string()),
            ("Authorization".to_owned(), authorization),
        ];
        self.0.put(path, &headers, body)
    }
}

/// An Azurite server.
#[derive(Debug)]
pub(crate) struct Azurite(Process);

impl Azurite {
    /// Starts Azurite with one empty container; returns the reason if it is not installed.
    pub(crate) fn start() -> Result<Self, String> {
        let program = find("HEARTHFS_AZURITE", "azurite-blob")?;
        let more =
            ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"];
        let azurite = Self(Process::start(&program, "--blobHost", "--blobPort", &more)?);
        let made = azurite.put(&format!("{BUCKET}?restype=container"), b"");
        assert_eq!(made, 201, "azurite makes a container");
        Ok(azurite)
    }

    /// Returns the address of the service, as a URL without the account.
    pub(crate) fn endpoint(&self) -> String {
        self.0.endpoint()
    }

    /// Writes a container or an object in one; returns the status.
    pub(crate) fn put(&self, path: &str, body: &[u8]) -> u16 {
        let path = format!("{AZURE_ACCOUNT}/{path}");
        let mut request = hyper::Request::put(format!("{}/{path}", self.endpoint()))
            .header("content-length", body.len())
            .header("x-ms-blob-type", "BlockBlob")
            .body(HttpRequestBody::empty())
            .expect("a request");
        let key = AzureAccessKey::try_new(AZURE_KEY).expect("the key is in base64");
        AzureAuthorizer::new(&AzureCredential::AccessKey(key), AZURE_ACCOUNT)
            .try_authorize(&mut request)
            .expect("signed");
        let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
            (name.to_string(), value.to_str().expect("text").to_owned())
        };
        let headers: Vec<_> = request.headers().iter().map(header).collect();
        self.0.put(&path, &headers, body)
    }
}

/// Finds a program through a variable that names it, or else on the path.
fn find(variable: &str, name: &str) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        let shown = path.display().to_string();
        return if path.is_file() {
            Ok(path)
        } else {
            Err(format!("{variable}={shown} is missing"))
        };
    }
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs)
        .map(|dir: PathBuf| dir.join(name))
        .find(|path: &PathBuf| Path::is_file(path))
        .ok_or_else(|| format!("{name} is not on PATH and {variable} is not set"))
}

#[expect(clippy::disallowed_methods, reason = "no runtime exists yet")]
fn nap(time: Duration) {
    std::thread::sleep(time);
}
