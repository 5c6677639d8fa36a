//! Process nodes: densities and energies per operation, with sources.

use crate::units::Hertz;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Exponent of the voltage curve: voltage over designed voltage is (clock over designed clock) to this power.
///
/// It is fitted to the operating points of chips on sale (Linux, `arch/arm64/boot/dts`). Each pair gives its own
/// exponent:
/// - MT8192's GPU at 7 nm (`mediatek/mt8192.dtsi`): 866 MHz at 0.800 V and 647 MHz at 0.694 V, 0.49.
/// - RK3399's GPU at 28 nm (`rockchip/rk3399-opp.dtsi`): 800 MHz at 1.100 V and 600 MHz at 0.925 V, 0.60.
/// - S922X's cores at 12 nm (`amlogic/meson-g12b-s922x.dtsi`): 1896 MHz at 0.981 V and 1398 MHz at 0.761 V, 0.83.
///
/// TSMC's pairs "faster at equal power, or less power at equal speed" are two ends of such a curve: N5P's 7 % or 15 %
/// and N4P's 11 % or 22 % give 0.70 and 0.69. With 0.65 all operating points of the three chips are met within 8 %.
pub(super) const VOLTAGE_EXPONENT: f64 = 0.65;

/// A process node, named as its foundry names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessNode {
    /// 45 nm planar.
    N45,
    /// 28 nm planar.
    N28,
    /// 22 nm.
    N22,
    /// 16 nm FinFET, and 12 nm, its optical shrink.
    N16,
    /// 7 nm.
    N7,
    /// 6 nm, the optical shrink of 7 nm.
    N6,
    /// 5 nm.
    N5,
    /// 4 nm, the optical shrink of 5 nm (TSMC 4N and 4NP included).
    N4,
    /// 3 nm.
    N3,
}

impl ProcessNode {
    /// All nodes, oldest first.
    pub const ALL: [Self; 9] = [Self::N45, Self::N28, Self::N22, Self::N16, Self::N7, Self::N6, Self::N5, Self::N4, Self::N3];

    /// The number in the node's name, in nanometres.
    #[must_use]
    pub fn nanometres(self) -> u32 {
        match self {
            Self::N45 => 45,
            Self::N28 => 28,
            Self::N22 => 22,
            Self::N16 => 16,
            Self::N7 => 7,
            Self::N6 => 6,
            Self::N5 => 5,
            Self::N4 => 4,
            Self::N3 => 3,
        }
    }

    /// Transistors per square millimetre that a large accelerator reaches, in millions: published transistor count over
    /// published die area. Foundries quote their densest libraries half as high again at 7 nm (96.3,
    /// [`Self::library_density`]); placed and routed logic never reaches that.
    ///
    /// Sources: GF100 3.0e9 / 529 mm^2 at 40 nm, shrunk to 45 by (40/45)^2; GM200 8.0e9 / 601 at 28 nm; 22 nm between
    /// its neighbours on a logarithmic scale; V100 21.1e9 / 815 at 12 nm (NVIDIA V100 white paper); A100 54.2e9 / 826
    /// at 7 nm (A100 white paper); 6 nm is 18 % denser than 7 nm (TSMC); H100 80e9 / 814 at 4 nm (H100 white paper); 4
    /// nm is 6 % denser than 5 nm (TSMC); 3 nm is 60 % denser than 5 nm in logic (TSMC N3E).
    #[must_use]
    pub fn logic_density(self) -> f64 {
        match self {
            Self::N45 => 4.48,
            Self::N28 => 13.3,
            Self::N22 => 18.2,
            Self::N16 => 25.9,
            Self::N7 => 65.6,
            Self::N6 => 77.4,
            Self::N5 => 92.7,
            Self::N4 => 98.3,
            Self::N3 => 148.3,
        }
    }

    /// Transistors per square millimetre of the densest library, in millions.
    ///
    /// Sources: 40, 28, 20, 14, 7 and 5 nm from Khan and Mann, *AI Chips* (CSET 2020), as in Princeton's ttm-cas; 45 nm
    /// is 40 nm times (40/45)^2, 22 nm lies between 28 and 20 nm; 6, 4 and 3 nm as in [`Self::logic_density`].
    #[must_use]
    pub fn library_density(self) -> f64 {
        match self {
            Self::N45 => 6.08,
            Self::N28 => 15.3,
            Self::N22 => 20.0,
            Self::N16 => 28.9,
            Self::N7 => 96.3,
            Self::N6 => 113.6,
            Self::N5 => 138.2,
            Self::N4 => 146.5,
            Self::N3 => 221.1,
        }
    }

    /// Area of an SRAM bit relative to 7 nm.
    ///
    /// Sources: 7, 6 and 5 nm from LLMCompass (Zhang et al., ISCA 2024; 0.170, 0.140, 0.125 um^2 per bit of cache,
    /// periphery included); 4 nm as 5 nm; the others by the published high-density cell over 7 nm's 0.027 um^2 (TSMC,
    /// ISSCC 2017): 0.346 at 45 nm (Intel, IEDM 2007), 0.127 at 28 nm (TSMC), 0.092 at 22 nm (Intel, ISSCC 2012), 0.070
    /// at 16 nm (TSMC, ISSCC 2014); 3 nm has 5 nm's cell (0.021, TSMC N3E, IEDM 2022).
    #[must_use]
    pub fn sram_scale(self) -> f64 {
        match self {
            Self::N45 => 12.81,
            Self::N28 => 4.70,
            Self::N22 => 3.41,
            Self::N16 => 2.59,
            Self::N7 => 1.0,
            Self::N6 => 0.824,
            Self::N5 | Self::N4 | Self::N3 => 0.735,
        }
    }

    /// The energy of an operation at this node, from its energies at 45 and at 7 nm.
    ///
    /// Between the two it follows a power law in the node's number (a straight line on logarithmic scales). Below 7 nm
    /// it follows the foundry's power at equal speed (TSMC): 6 nm as 7 nm, 5 nm 30 % less, 4 nm 22 % less than 5 nm
    /// (N4P, whose density 4 nm has here too), 3 nm 30 % less than 5 nm.
    #[must_use]
    pub fn energy_at_node(self, at_45nm: f64, at_7nm: f64) -> f64 {
        match self {
            Self::N6 => at_7nm,
            Self::N5 => at_7nm * 0.7,
            Self::N4 => at_7nm * 0.7 * 0.78,
            Self::N3 => at_7nm * 0.49,
            Self::N45 | Self::N28 | Self::N22 | Self::N16 | Self::N7 => {
                let t = (f64::from(self.nanometres()) / 7.0).ln() / (45.0_f64 / 7.0).ln();
                at_45nm.powf(t) * at_7nm.powf(1.0 - t)
            }
        }
    }

    /// The clock to which [`Self::energy_at_node`] refers; `None` for planar nodes.
    ///
    /// Energies at 7 nm are published with TPU v4i, a chip of 1050 MHz (Jouppi et al., ISCA 2021); newer nodes are
    /// relative to them at equal speed. 16 nm is 35 % slower at equal voltage (TSMC, N7 over 16FF+). Planar nodes'
    /// energies hold at the nominal voltage (45 nm: 0.9 V) of any chip here.
    fn reference_clock(self) -> Option<Hertz> {
        match self {
            Self::N45 | Self::N28 | Self::N22 => None,
            Self::N16 => Some(Hertz(1050e6 / 1.35)),
            Self::N7 | Self::N6 | Self::N5 | Self::N4 | Self::N3 => Some(Hertz(1050e6)),
        }
    }

    /// The energy of an operation on a chip designed for this clock, relative to [`Self::energy_at_node`]. A higher
    /// clock takes a higher voltage, or equivalent larger gates and deeper pipelines. The factor is the voltage's
    /// square, with the same curve and floor as under a power limit.
    #[must_use]
    pub fn energy_at_clock(self, clock: Hertz) -> f64 {
        let Some(reference) = self.reference_clock() else { return 1.0 };
        (clock.0 / reference.0).powf(VOLTAGE_EXPONENT).max(self.voltage_floor()).powi(2)
    }
}

impl fmt::Display for ProcessNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nm", self.nanometres())
    }
}
