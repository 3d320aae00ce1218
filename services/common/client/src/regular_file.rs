//! Files that are read whole.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a regular file of at most `most_bytes`. Other files are refused: a pipe would make the process wait for its
/// writer, and a device may never end.
///
/// # Errors
/// When it cannot be read, or is of another kind or longer; never shows what is in it.
pub fn read(path: &Path, most_bytes: usize) -> io::Result<Vec<u8>> {
    // Before it is opened, which is where a pipe waits.
    if !fs::metadata(path)?.is_file() {
        let why = "it is not a regular file; copy its content into one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut content = Vec::new();
    let one_more = u64::try_from(most_bytes).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(one_more).read_to_end(&mut content)?;
    if content.len() > most_bytes {
        let why = format!("it has more than {most_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_a_regular_file_that_is_not_too_long_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let [file, pipe, link] = ["file", "pipe", "link"].map(|name| dir.path().join(name));
        fs::write(&file, "12345").unwrap();
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read(&link, 5).unwrap(), b"12345");
        let refused = |path: &Path, most_bytes| read(path, most_bytes).unwrap_err().to_string();
        assert_eq!(refused(&file, 4), "it has more than 4 bytes");
        for other in [&pipe, dir.path(), Path::new("/dev/zero")] {
            let expected = "it is not a regular file; copy its content into one";
            assert_eq!(refused(other, 5), expected);
        }
        assert_eq!(
            read(&dir.path().join("none"), 5).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
