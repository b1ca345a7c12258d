//! A program of the tests that act at random; see `s3_csi_tests::actor`.

fn main() {
    s3_csi_tests::actor::run();
}
