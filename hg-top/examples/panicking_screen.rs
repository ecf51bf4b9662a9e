//! A program that panics while it holds the screen, for the test that the terminal is given back all the same.

fn main() -> std::io::Result<()> {
    let mut screen = hg_top::term::Screen::open()?;
    screen.draw(|frame| {
        frame.buffer_mut().set_string(0, 0, "the screen is mine", ratatui::style::Style::new());
    })?;
    panic!("the screen is mine no more");
}
